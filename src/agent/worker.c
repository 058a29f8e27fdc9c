/* Theory of operation. The agent forks (memory copied: the agent is small), the child
 * becomes the sandbox's user without capabilities, closes every fd but the connection and
 * runs archive.c's loop on it, blocking; seccomp is inherited. A hostile archive thus
 * meets only what the sandbox's user could do anyway. The worker stays in the agent's
 * memory cgroup: what it unpacks is bounded by the size of the sandbox's storage, not by the
 * memory limit of its commands. The agent reaps; a worker that dies without a closing
 * frame is a failed transfer for the server, never a short success. */
#include "agent/worker.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/archive.h"
#include "agent/conn.h"
#include "agent/spawn.h"
#include "base/cleanup.h"
#include "base/limits.h"
#include "os/cgroup.h"
#include "os/clone.h"
#include "os/loop.h"
#include "os/sys.h"

#define MAX_WORKERS 64

struct running {
        struct source hangup; /* our copy of its connection */
        pid_t pid;            /* 0: free */
};

static struct {
        uid_t uid;
        const int *tasks;
        struct running all[MAX_WORKERS];
} workers;

void worker_setup(uid_t user_uid, const int *tasks)
{
        workers.uid = user_uid;
        workers.tasks = tasks;
}

struct work {
        enum frame_type type;
        char *path;
        uint64_t max_bytes, max_members;
};

static int parse(enum frame_type type, struct str payload, struct work *w)
{
        enum field tag;
        struct str v;
        int r;
        *w = (struct work){ .type = type, .max_bytes = LIMIT_UNPACKED_BYTES, .max_members = LIMIT_UPLOAD_MEMBERS };
        while ((r = field_next(&payload, &tag, &v)) > 0) {
                bool ok = true;
                if (tag == FIELD_PATH) {
                        free(w->path);
                        ok = (w->path = str_dup_c(v)) != NULL;
                } else if (tag == FIELD_MAX_BYTES)
                        ok = field_u64(v, &w->max_bytes);
                else if (tag == FIELD_MAX_MEMBERS)
                        ok = field_u64(v, &w->max_members);
                if (!ok)
                        return -EINVAL;
        }
        return r < 0 ? r : w->path ? 0 : -EINVAL;
}

static void worker_main(int conn, const struct work *w)
{
        sigset_t none;
        sigemptyset(&none);
        (void)sigprocmask(SIG_SETMASK, &none, NULL);
        (void)prctl(PR_SET_NAME, "cloche-files");
        /* Its cpu time and its place among the processes are the sandbox's, where v1 can count
         * them apart from memory, which is not (see above). */
        static const enum cg_controller shared[] = { CG_PIDS, CG_CPU };
        for (unsigned i = 0; i < ARRAY_SIZE(shared); i++)
                if (workers.tasks[shared[i]] >= 0 && write(workers.tasks[shared[i]], "0", 1) != 1)
                        _exit(69);
        if (dup2(conn, 3) < 0)
                _exit(70);
        (void)sys_close_range(4, ~0u, 0);
        (void)umask(022);
        if (spawn_become_user(workers.uid) < 0)
                _exit(71);
        (void)fcntl(3, F_SETFL, 0); /* blocking from here */
        int root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (root < 0)
                _exit(72);
        if (w->type == FRAME_TAR)
                _exit(tar_run(root, 3, w->path));
        struct untar_request q = { w->path, w->max_bytes, w->max_members };
        _exit(untar_run(root, 3, &q));
}

/* The asker has left: the worker reads the end, removes what is half done and leaves. One
 * that commands of the sandbox have stopped would not notice. */
static void on_hangup(struct source *s, uint32_t events)
{
        (void)events;
        struct running *w = (struct running *)s;
        loop_remove(s);
        (void)kill(w->pid, SIGCONT);
}

void worker_start(struct conn *c, enum frame_type type, struct str payload)
{
        struct work w;
        int r = parse(type, payload, &w);
        _cleanup_free_ char *path = w.path;
        if (r < 0) {
                conn_fail(c, r, ERR_USER, "the file request is malformed");
                return;
        }
        struct running *place = NULL;
        for (unsigned i = 0; i < MAX_WORKERS && !place; i++)
                if (!workers.all[i].pid)
                        place = &workers.all[i];
        if (!place) {
                conn_fail(c, -EAGAIN, ERR_USER, "%d transfers are running in this sandbox already", MAX_WORKERS);
                return;
        }
        _cleanup_close_ int fd = conn_steal_fd(c);
        pid_t pid = clone_fork(0, -1, NULL);
        if (pid == 0)
                worker_main(fd, &w);
        if (pid > 0) {
                *place = (struct running){ { steal_fd(&fd), on_hangup }, pid };
                (void)loop_add(&place->hangup, EPOLLRDHUP);
        } else
                (void)frame_write(fd, FRAME_FAIL, NULL, 0);
}

bool worker_child_gone(pid_t pid)
{
        for (unsigned i = 0; i < MAX_WORKERS; i++)
                if (workers.all[i].pid == pid) {
                        loop_remove(&workers.all[i].hangup);
                        workers.all[i].pid = 0;
                        return true;
                }
        return false;
}
