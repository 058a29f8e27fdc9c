/* Theory of operation. Each exec has a pipe for each output stream, a cgroup of its own
 * and a leader process that spawn.c started. The leader's exit ends the exec: what is in
 * the pipes then is read, and the answer goes out. Processes that the leader left behind
 * keep their pipes, which are read and dropped so that writing does not end them. At the
 * deadline, or when the asker leaves, the exec's whole cgroup is killed and the answer
 * waits until it is empty (bounded, for processes stuck in the kernel). Without a unified
 * cgroup hierarchy a supervisor process stands between (supervise.c). */
#include "agent/exec.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/capture.h"
#include "agent/conn.h"
#include "agent/exec_request.h"
#include "agent/group.h"
#include "agent/info.h"
#include "os/loop.h"
#include "agent/spawn.h"
#include "agent/supervise.h"
#include "base/limits.h"
#include "base/now.h"
#include "wire/frame.h"

struct stream {
        struct source src;
        int hold; /* our copy of the write end: else a command's end would wake us once for
                   * each pipe before its exit does */
        struct exec *x; /* NULL: the exec is over, drop what comes */
        struct capture kept;
};

struct exec {
        struct exec *next;
        struct conn *conn;    /* NULL: abandoned */
        pid_t pid;            /* leader, or its supervisor; 0 once reaped */
        struct supervised sup;
        struct group *group;
        struct stream *stream[2];
        uint64_t started, deadline, duration;
        uint64_t oom_before;
        int status;           /* of the leader */
        bool leader_done, ending, timed_out;
};

static struct {
        const struct agent_params *p;
        struct exec *list;
        unsigned count;
        int null_fd;
} execs;

void exec_setup(const struct agent_params *p)
{
        execs.p = p;
        execs.null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
        group_setup(p->cg.cmd_dir);
}

static uint64_t oom_kills(void)
{
        char text[512];
        ssize_t n = execs.p->cg.oom_events >= 0 ? pread(execs.p->cg.oom_events, text, sizeof text - 1, 0) : 0;
        if (n <= 0)
                return 0;
        text[n] = '\0';
        return cg_find_count(text, "oom_kill");
}

/* --- output ------------------------------------------------------------------ */

static void stream_close(struct stream *st)
{
        loop_remove(&st->src);
        close_fd(&st->hold);
        if (st->x)
                for (unsigned i = 0; i < 2; i++)
                        if (st->x->stream[i] == st)
                                st->x->stream[i] = NULL;
        capture_free(&st->kept);
        free(st);
}

/* Reads what is there, but not for ever: a flood must not starve the others. 0 more may
 * come later, 1 at the end of the stream. */
static int stream_read(struct stream *st, unsigned rounds)
{
        static char scratch[64 * 1024];
        while (rounds--) {
                ssize_t n = read(st->src.fd, scratch, sizeof scratch);
                if (n < 0)
                        return errno == EAGAIN || errno == EINTR ? 0 : 1;
                if (n == 0)
                        return 1;
                if (st->x)
                        capture_add(&st->kept, scratch, (size_t)n);
                if ((size_t)n < sizeof scratch)
                        return 0;
        }
        return 0;
}

static void on_output(struct source *s, uint32_t events)
{
        (void)events;
        struct stream *st = (struct stream *)s;
        if (stream_read(st, 4) == 0)
                return;
        if (!st->x)
                stream_close(st);
        else
                loop_remove(&st->src); /* the capture is still needed for the answer */
}

static struct stream *stream_open(struct exec *x, size_t cap)
{
        int p[2];
        struct stream *st = calloc(1, sizeof *st);
        if (!st || pipe2(p, O_CLOEXEC) < 0) {
                free(st);
                return NULL;
        }
        (void)fcntl(p[0], F_SETFL, O_NONBLOCK);
        /* The pipe is the agent's, and opening /dev/stdout asks its inode. */
        (void)fchmod(p[1], 0622);
        st->src = (struct source){ p[0], on_output };
        st->hold = p[1];
        st->x = x;
        capture_init(&st->kept, cap);
        if (loop_add(&st->src, EPOLLIN) < 0) {
                (void)close(p[0]);
                (void)close(p[1]);
                free(st);
                return NULL;
        }
        return st;
}

static bool tree_alive(const struct exec *x)
{
        return x->group ? group_populated(x->group) : x->pid != 0;
}

/* The exec is over; what its left-behind processes still write is read and dropped. */
static void streams_let_go(struct exec *x, bool alive)
{
        for (unsigned i = 0; i < 2; i++) {
                struct stream *st = x->stream[i];
                if (!st)
                        continue;
                x->stream[i] = NULL;
                st->x = NULL;
                if (st->src.fd < 0 || !alive)
                        stream_close(st);
                else {
                        capture_free(&st->kept);
                        close_fd(&st->hold); /* the end is the last writer's now */
                }
        }
}

/* --- the end -------------------------------------------------------------------- */

static void exec_free(struct exec *x)
{
        for (struct exec **at = &execs.list; *at; at = &(*at)->next)
                if (*at == x) {
                        *at = x->next;
                        break;
                }
        bool alive = tree_alive(x);
        streams_let_go(x, alive);
        supervise_close(&x->sup);
        group_put(x->group, !alive);
        execs.count--;
        free(x);
}

static enum exit_reason reason_of(const struct exec *x, int *ret_code, int *ret_signal)
{
        *ret_signal = WIFSIGNALED(x->status) ? WTERMSIG(x->status) : 0;
        *ret_code = *ret_signal ? 128 + *ret_signal : WEXITSTATUS(x->status);
        if (x->timed_out) {
                *ret_code = 124;
                return EXIT_TIMEOUT;
        }
        /* A shell whose child was taken reports 137 by itself. */
        bool killed = *ret_signal == SIGKILL || *ret_code == 128 + SIGKILL;
        if (killed && oom_kills() > x->oom_before)
                return EXIT_OOM;
        return *ret_signal ? EXIT_SIGNALED : EXIT_EXITED;
}

static void add_stream(struct buf *out, enum frame_type type, const struct stream *st)
{
        _cleanup_buf_ struct buf text = { 0 };
        if (!st)
                return;
        capture_render(&st->kept, &text);
        for (size_t at = 0; at < text.len;) {
                size_t n = text.len - at < FRAME_DATA_BYTES * 8 ? text.len - at : FRAME_DATA_BYTES * 8;
                frame_add(out, type, text.data + at, n);
                at += n;
        }
        if (!buf_ok(&text))
                out->failed = true;
}

static void exec_answer(struct exec *x)
{
        struct buf out = { 0 };
        int code, signal;
        enum exit_reason reason = reason_of(x, &code, &signal);
        for (unsigned i = 0; i < 2; i++)
                if (x->stream[i] && x->stream[i]->src.fd >= 0)
                        (void)stream_read(x->stream[i], 64);
        add_stream(&out, FRAME_STDOUT, x->stream[0]);
        add_stream(&out, FRAME_STDERR, x->stream[1]);
        size_t mark = frame_begin(&out, FRAME_EXIT);
        field_add_u64(&out, FIELD_CODE, (uint64_t)code);
        field_add_u64(&out, FIELD_SIGNAL, (uint64_t)signal);
        field_add_u64(&out, FIELD_REASON, reason);
        field_add_u64(&out, FIELD_DURATION_NS, x->duration);
        field_add_u64(&out, FIELD_STDOUT_TOTAL, x->stream[0] ? x->stream[0]->kept.total : 0);
        field_add_u64(&out, FIELD_STDERR_TOTAL, x->stream[1] ? x->stream[1]->kept.total : 0);
        frame_finish(&out, mark);
        struct conn *c = x->conn;
        x->conn = NULL;
        conn_finish(c, &out); /* first: somebody waits for it */
        exec_free(x);
}

static void arm_deadline(void);

/* Answers or forgets x when it is over; says whether it did. */
static bool exec_settle(struct exec *x)
{
        if (!x->leader_done)
                return false;
        if (x->ending && tree_alive(x) && now_ns() < x->deadline)
                return false;
        if (x->conn)
                exec_answer(x);
        else
                exec_free(x);
        return true;
}

/* Kills the tree of x. The deadline now bounds how long its death may take. */
static void exec_end(struct exec *x)
{
        if (x->ending)
                return;
        x->ending = true;
        x->deadline = now_ns() + EXEC_ENDING_SECONDS * NS_PER_SEC;
        if (x->group)
                (void)group_kill(x->group);
        else
                supervise_kill(x->pid);
}

static void on_deadline(void)
{
        uint64_t now = now_ns();
        for (struct exec *x = execs.list, *next; x; x = next) {
                next = x->next;
                if (x->deadline > now)
                        continue;
                if (x->ending) {
                        /* Killed and still not gone: stuck in the kernel. Say what is
                         * known rather than hang; the cgroup stays taken. */
                        x->leader_done = true;
                        (void)exec_settle(x);
                        continue;
                }
                x->timed_out = true;
                exec_end(x);
                (void)exec_settle(x);
        }
        arm_deadline();
}

static void arm_deadline(void)
{
        uint64_t first = 0;
        for (struct exec *x = execs.list; x; x = x->next)
                if (!first || x->deadline < first)
                        first = x->deadline;
        loop_set_deadline(first, on_deadline);
}

void exec_abandon(struct exec *x)
{
        x->conn = NULL;
        exec_end(x);
        (void)exec_settle(x);
        arm_deadline();
}

static void leader_gone(struct exec *x, int status)
{
        /* Perhaps the keeper killed all groups from outside (KEEPER_KILL), also those that only
         * a background process was in: see group.c. */
        if (x->group && !x->ending && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
                group_doubt_all();
        x->status = status;
        x->leader_done = true;
        x->duration = now_ns() - x->started;
}

void exec_child_gone(pid_t pid, int status)
{
        for (struct exec *x = execs.list; x; x = x->next) {
                if (x->pid != pid)
                        continue;
                x->pid = 0;
                if (!x->leader_done) {
                        if (x->sup.src.fd >= 0 && !supervise_status(&x->sup, &status))
                                /* A supervisor that died before its command did was killed
                                 * from inside: nothing tells its tree from the rest any
                                 * more, so everything in this sandbox ends. */
                                supervise_panic();
                        leader_gone(x, status);
                }
                if (exec_settle(x))
                        arm_deadline();
                return;
        }
}

void exec_check_ending(void)
{
        bool changed = false;
        for (struct exec *x = execs.list, *next; x; x = next) {
                next = x->next;
                if (x->ending)
                        changed |= exec_settle(x);
        }
        if (changed)
                arm_deadline();
}

/* --- the start ------------------------------------------------------------------- */

static void fail_spawn(struct conn *c, const struct spawn *s, const struct exec_request *q)
{
        if (s->stage == SPAWN_EXEC) {
                /* As a shell would put it: the answer is an ordinary exit. */
                struct buf out = { 0 };
                bool missing = s->error == -ENOENT || s->error == -ENOTDIR;
                _cleanup_free_ char *text = NULL;
                int n = missing ? asprintf(&text, "Command not found: %s\n", q->argv[0])
                                : asprintf(&text, "Cannot execute %s: %s\n", q->argv[0], strerror(-s->error));
                if (n > 0)
                        frame_add(&out, FRAME_STDERR, text, (size_t)n);
                size_t mark = frame_begin(&out, FRAME_EXIT);
                field_add_u64(&out, FIELD_CODE, missing ? 127 : 126);
                field_add_u64(&out, FIELD_REASON, EXIT_EXITED);
                field_add_u64(&out, FIELD_STDERR_TOTAL, n > 0 ? (uint64_t)n : 0);
                frame_finish(&out, mark);
                conn_finish(c, &out);
                return;
        }
        if (s->stage == SPAWN_WORKDIR)
                conn_fail(c, s->error, ERR_USER, "cannot enter workdir %s: %s", s->workdir, strerror(-s->error));
        else if (s->error == -EAGAIN || s->error == -ENOMEM)
                conn_fail(c, s->error, ERR_USER, "the sandbox has no room for another process (pids or memory limit)");
        else
                conn_fail(c, s->error ? s->error : -EIO, ERR_HOST, "cannot start the command (stage %d): %s",
                          (int)s->stage, strerror(-s->error));
}

/* On failure the pid of a dead child is still to be reaped: waitpid here, it is a zombie. */
static pid_t start_leader(struct exec *x, struct spawn *s)
{
        if (!x->group)
                return supervise_start(&x->sup, s);
        pid_t pid = spawn_command(s, x->group->dir);
        if (pid < 0) {
                s->stage = SPAWN_CGROUP;
                s->error = pid;
                return pid;
        }
        /* Without an error it is running, or somebody in the sandbox killed it on its way:
         * both are for the reaper to tell. */
        if (s->error == 0)
                return pid;
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
                ;
        return -1;
}

static void on_supervised(struct source *src, uint32_t events)
{
        (void)events;
        int status;
        struct exec *x = (struct exec *)((char *)src - offsetof(struct exec, sup.src));
        if (!supervise_status(&x->sup, &status)) {
                /* Its end without a word: it was killed from inside (see exec_child_gone,
                 * which may come first or last). */
                if (!x->leader_done)
                        supervise_panic();
                supervise_close(&x->sup);
                return;
        }
        leader_gone(x, status);
        supervise_close(&x->sup);
        if (exec_settle(x))
                arm_deadline();
}

static struct exec *exec_new(struct conn *c, const struct exec_request *q)
{
        struct exec *x = calloc(1, sizeof *x);
        if (!x)
                return NULL;
        x->conn = c;
        x->sup.src.fd = -1;
        x->next = execs.list;
        execs.list = x;
        execs.count++;
        x->stream[0] = stream_open(x, q->output_cap);
        x->stream[1] = x->stream[0] ? stream_open(x, q->output_cap) : NULL;
        x->group = group_take();
        if (!x->stream[1] || (execs.p->cg.cmd_dir >= 0 && !x->group)) {
                exec_free(x);
                return NULL;
        }
        return x;
}

struct exec *exec_start(struct conn *c, struct str payload)
{
        _cleanup_(exec_request_free) struct exec_request q = { 0 };
        struct err e = { 0 };
        int r = exec_request_parse(payload, &q, &e);
        if (r < 0) {
                conn_fail(c, r, e.blame, "%s", e.msg);
                return NULL;
        }
        if (execs.count >= LIMIT_EXECS_PER_BOX) {
                conn_fail(c, -EAGAIN, ERR_USER, "%d commands are running in this sandbox already",
                          LIMIT_EXECS_PER_BOX);
                return NULL;
        }
        struct exec *x = exec_new(c, &q);
        if (!x) {
                conn_fail(c, -ENOMEM, ERR_HOST, "the agent has no room for another command");
                return NULL;
        }
        info_refresh();
        x->oom_before = oom_kills();
        x->started = now_ns();
        x->deadline = x->started + q.timeout_ms * NS_PER_MS;
        struct spawn s = { .argv = q.argv, .envp = q.envp, .workdir = q.workdir, .uid = execs.p->user_uid,
                           .in = execs.null_fd, .out = x->stream[0]->hold, .err = x->stream[1]->hold,
                           .tasks = execs.p->cg.tasks, .cpus = execs.p->cpus, .pids = execs.p->pids };
        pid_t pid = start_leader(x, &s);
        if (pid < 0) {
                exec_free(x);
                fail_spawn(c, &s, &q);
                return NULL;
        }
        x->pid = pid;
        if (x->sup.src.fd >= 0) {
                x->sup.src.fn = on_supervised;
                (void)loop_add(&x->sup.src, EPOLLIN);
        }
        arm_deadline();
        return x;
}
