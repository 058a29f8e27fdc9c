/* A server's restart: rows in the store, sockets in the run directory, a fake keeper in a
 * thread and a fake agent in a child that listens on all sockets. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "base/now.h"
#include "box/boxes.h"
#include "check.h"
#include "os/sys.h"
#include "wire/fdpass.h"
#include "wire/frame.h"

static char dir[] = "/tmp/cloche-test-adopt-XXXXXX";
static uv_loop_t loop;
static int keeper;
static pid_t agent;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
        unsigned adopted[16], adopt_count, destroyed[16], destroy_count, sweeps;
        bool right_process;
} said;

#define REFUSED_SLOT 66
#define DEADLY_SLOT 67 /* the keeper dies when it is asked to adopt it */

/* Answers until the socket closes. */
static void *keeper_main(void *arg)
{
        struct keeper_request q;
        int fd = -1;
        (void)arg;
        said.right_process = true;
        while (fdpass_recv(keeper, &q, sizeof q, &fd) == sizeof q) {
                struct keeper_reply r = { .op = q.op, .cookie = q.cookie, .slot = q.slot };
                (void)pthread_mutex_lock(&lock);
                if (q.op == KEEPER_ADOPT) {
                        char path[64], text[512] = "";
                        (void)snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
                        (void)file_read(AT_FDCWD, path, text, sizeof text);
                        const char *p = strstr(text, "\nPid:");
                        if (q.slot != REFUSED_SLOT) /* the kernel's word, not a file's */
                                said.right_process &= p && atoi(p + 5) == agent;
                        if (q.slot == DEADLY_SLOT) {
                                (void)shutdown(keeper, SHUT_RDWR);
                                (void)pthread_mutex_unlock(&lock);
                                break;
                        }
                        if (q.slot == REFUSED_SLOT)
                                r.code = -EINVAL;
                        else if (said.adopt_count < 16)
                                said.adopted[said.adopt_count++] = q.slot;
                }
                if (q.op == KEEPER_DESTROY && said.destroy_count < 16)
                        said.destroyed[said.destroy_count++] = q.slot;
                said.sweeps += q.op == KEEPER_SWEEP;
                (void)pthread_mutex_unlock(&lock);
                close_fd(&fd);
                (void)fdpass_send(keeper, &r, sizeof r, -1);
        }
        return NULL;
}

static int listen_on(const char *name)
{
        struct sockaddr_un a = { .sun_family = AF_UNIX };
        engine_socket_name(name, a.sun_path, sizeof a.sun_path);
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (bind(fd, (struct sockaddr *)&a, sizeof a) < 0 || listen(fd, 8) < 0)
                abort();
        return fd;
}

/* slots[i] < 0: says nothing sensible. */
static void agent_main(const char *const *names, const int *slots, unsigned n)
{
        struct pollfd p[8];
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (unsigned i = 0; i < n; i++)
                p[i] = (struct pollfd){ listen_on(names[i]), POLLIN, 0 };
        (void)close(open("ready", O_CREAT | O_WRONLY, 0600));
        while (poll(p, n, -1) > 0)
                for (unsigned i = 0; i < n; i++) {
                        struct buf b = { 0 };
                        struct frame f;
                        if (!(p[i].revents & POLLIN))
                                continue;
                        int fd = accept(p[i].fd, NULL, NULL);
                        if (slots[i] < 0)
                                (void)!write(fd, "nonsense, and more of it", 24);
                        else if (frame_read(fd, &b, &f) > 0 && f.type == FRAME_PING) {
                                struct buf out = { 0 };
                                field_add_u64(&out, FIELD_COUNT, (uint64_t)slots[i]);
                                (void)frame_write(fd, FRAME_HELLO, out.data, out.len);
                                buf_free(&out);
                        }
                        buf_free(&b);
                        (void)close(fd);
                }
        _exit(0);
}

/* Returns when it listens. */
static pid_t start_agent(const char *const *names, const int *slots, unsigned n)
{
        (void)unlink("ready");
        pid_t pid = fork();
        if (pid == 0)
                agent_main(names, slots, n);
        for (int i = 0; i < 5000 && access("ready", F_OK) < 0; i++)
                (void)usleep(1000);
        return pid;
}

static void put_row(struct store *s, const char *name, struct str id, unsigned slot, int64_t expires)
{
        struct err e;
        struct box *b = box_new(id);
        (void)snprintf(b->name, sizeof b->name, "%s", name);
        (void)snprintf(b->image, sizeof b->image, "host");
        b->slot = slot;
        b->ttl_ms = 60000;
        b->expires_ms = expires;
        CHECK_INT(store_put(s, b, &e), 0);
        box_unref(b);
}

static void count_row(struct box *b, void *user)
{
        (*(unsigned *)user)++;
        box_unref(b);
}

static unsigned idles;

static void on_idle(void *user)
{
        (void)user;
        idles++;
}

static void test_restart(void)
{
        static const char *const names[] = { "sbx-live", "sbx-late", "sbx-orphan", "sbx-refused", "sbx-odd" };
        static const int slots[] = { 3, 4, 5, REFUSED_SLOT, -1 };
        int sv[2];
        struct keeper_reply hello = { .op = KEEPER_READY }, got;
        struct engine *g = NULL;
        struct store *s = NULL;
        struct boxes bs;
        struct boxes_config c = { .max_boxes = 100 };
        struct err e = { 0 };
        pthread_t t;
        pid_t stranger = start_agent(names + 3, slots + 3, 2);
        agent = start_agent(names, slots, 3);
        (void)close(listen_on("sbx-dead")); /* a socket that nobody listens on any more */
        (void)close(open("unrelated.txt", O_CREAT | O_WRONLY, 0600));
        (void)close(open(".sock", O_CREAT | O_WRONLY, 0600));
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sv) < 0)
                abort();
        keeper = sv[1];
        CHECK_INT(fdpass_send(keeper, &hello, sizeof hello, -1), 0);
        CHECK_INT(engine_new(&loop, sv[0], &g, &got, &e), 0);
        CHECK_INT(store_open("store.db", &s, &e), 0);
        put_row(s, "sbx-live", STR("live\0id"), 3, now_wall_ms() + 60000);
        put_row(s, "sbx-late", STR("late"), 4, now_wall_ms() - 1); /* expired while nobody looked */
        put_row(s, "sbx-refused", STR("refused"), REFUSED_SLOT, now_wall_ms() + 60000);
        put_row(s, "sbx-dead", STR("dead"), 9, now_wall_ms() + 60000);
        put_row(s, "sbx-gone", STR("gone"), 10, now_wall_ms() + 60000); /* not even a socket */
        put_row(s, "../../etc/evil", STR("evil"), 11, now_wall_ms() + 60000);
        CHECK_INT(boxes_init(&bs, &loop, g, s, &c, &e), 0);
        (void)pthread_create(&t, NULL, keeper_main, NULL);
        unsigned adopted = 99, lost = 99, rows = 0;
        CHECK_INT(boxes_adopt(&bs, &adopted, &lost, &e), 0);
        CHECK_INT(adopted, 2);
        CHECK_INT(lost, 4);
        CHECK_INT(bs.registry.count, 2);
        struct box *b = registry_find(&bs.registry, STR("live\0id"));
        CHECK(b && b->state == BOX_RUNNING && b->slot == 3 && b->pidfd >= 0 && b->ttl_ms == 60000);
        CHECK(registry_find(&bs.registry, STR("refused")) == NULL);
        CHECK(store_load(s, count_row, &rows, &e) == 0 && rows == 2);
        CHECK_INT(engine_sweep(g), 0);
        for (int i = 0; i < 2000; i++) { /* the orphan is ended, the late one expires */
                (void)uv_run(&loop, UV_RUN_NOWAIT);
                (void)pthread_mutex_lock(&lock);
                bool done = said.destroy_count == 2;
                (void)pthread_mutex_unlock(&lock);
                if (done && bs.registry.count == 1 && !bs.in_transit)
                        break;
                (void)usleep(1000);
        }
        CHECK_INT(bs.in_transit, 0);
        CHECK(said.right_process);
        CHECK_INT(said.sweeps, 1);
        CHECK_INT(said.adopt_count, 3);
        CHECK_INT(said.adopted[0] + said.adopted[1] + said.adopted[2], 3 + 4 + 5);
        CHECK_INT(said.destroyed[0] + said.destroyed[1], 4 + 5);
        CHECK(access("sbx-live.sock", F_OK) == 0);
        CHECK(access("sbx-orphan.sock", F_OK) < 0 && access("sbx-dead.sock", F_OK) < 0);
        CHECK(access("sbx-odd.sock", F_OK) < 0 && access("sbx-refused.sock", F_OK) < 0);
        CHECK(access("unrelated.txt", F_OK) == 0);
        int status = 0; /* what nobody can adopt is ended here, not left to whoever finds it */
        CHECK_INT(waitpid(stranger, &status, 0), stranger);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        boxes_shutdown(&bs, false, on_idle, NULL);
        CHECK_INT(idles, 1);
        boxes_free(&bs);
        engine_close(g);
        for (int i = 0; i < 10; i++)
                (void)uv_run(&loop, UV_RUN_NOWAIT);
        (void)pthread_join(t, NULL);
        (void)close(keeper);
        store_close(s);
        (void)kill(agent, SIGKILL);
        (void)waitpid(agent, NULL, 0);
}

/* Starts the fake keeper, opens the store and makes bs. */
static void open_all(const char *place, struct engine **g, struct store **s, struct boxes *bs, pthread_t *t)
{
        int sv[2];
        struct keeper_reply hello = { .op = KEEPER_READY }, got;
        struct boxes_config c = { .max_boxes = 100 };
        struct err e = { 0 };
        (void)snprintf(c.place, sizeof c.place, "%s", place);
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sv) < 0)
                abort();
        keeper = sv[1];
        CHECK_INT(fdpass_send(keeper, &hello, sizeof hello, -1), 0);
        CHECK_INT(engine_new(&loop, sv[0], g, &got, &e), 0);
        CHECK_INT(store_open("store2.db", s, &e), 0);
        CHECK_INT(boxes_init(bs, &loop, *g, *s, &c, &e), 0);
        (void)pthread_create(t, NULL, keeper_main, NULL);
}

static void close_all(struct engine *g, struct store *s, struct boxes *bs, pthread_t t)
{
        boxes_shutdown(bs, false, on_idle, NULL);
        boxes_free(bs);
        engine_close(g);
        for (int i = 0; i < 10; i++)
                (void)uv_run(&loop, UV_RUN_NOWAIT);
        (void)pthread_join(t, NULL);
        (void)close(keeper);
        store_close(s);
}

/* What hinders us says nothing about the sandboxes: no row and no socket may go. */
static void test_unsure_is_not_lost(void)
{
        static const char *const names[] = { "sbx-a", "sbx-b", "sbx-c", "sbx-nobodys" };
        static const int slots[] = { 1, DEADLY_SLOT, 2, DEADLY_SLOT };
        struct engine *g = NULL;
        struct store *s = NULL;
        struct boxes bs;
        pthread_t t;
        struct err e = { 0 };
        unsigned adopted = 0, lost = 0, rows = 0;
        agent = start_agent(names, slots, 4);
        /* without descriptors */
        open_all("here", &g, &s, &bs, &t);
        for (unsigned i = 0; i < 3; i++)
                put_row(s, names[i], str_c(names[i]), (unsigned)slots[i], now_wall_ms() + 60000);
        struct rlimit before, none;
        CHECK_INT(getrlimit(RLIMIT_NOFILE, &before), 0);
        none = before;
        none.rlim_cur = 0;
        CHECK_INT(setrlimit(RLIMIT_NOFILE, &none), 0);
        CHECK_INT(boxes_adopt(&bs, &adopted, &lost, &e), -EMFILE);
        CHECK_INT(setrlimit(RLIMIT_NOFILE, &before), 0);
        CHECK(strstr(e.msg, "sbx-a") && strstr(e.msg, "open files"));
        close_all(g, s, &bs, t);
        /* the keeper dies in the middle */
        open_all("here", &g, &s, &bs, &t);
        CHECK(boxes_adopt(&bs, &adopted, &lost, &e) < 0);
        CHECK(strstr(e.msg, "sbx-b") && strstr(e.msg, "the keeper died"));
        close_all(g, s, &bs, t);
        /* and while it is asked about an orphan */
        open_all("here", &g, &s, &bs, &t);
        struct box *b = box_new(STR("sbx-b"));
        (void)snprintf(b->name, sizeof b->name, "sbx-b");
        CHECK_INT(store_delete(s, b, &e), 0);
        box_unref(b);
        CHECK(boxes_adopt(&bs, &adopted, &lost, &e) < 0);
        CHECK_INT(adopted, 2);
        CHECK_INT(lost, 0);
        CHECK(store_load(s, count_row, &rows, &e) == 0 && rows == 2);
        for (unsigned i = 0; i < 4; i++) {
                char sock[64];
                engine_socket_name(names[i], sock, sizeof sock);
                CHECK(access(sock, F_OK) == 0);
        }
        close_all(g, s, &bs, t);
        (void)kill(agent, SIGKILL);
        (void)waitpid(agent, NULL, 0);
}

/* Sandboxes that live in another uid range or other cgroups: refused while one of them lives,
 * row or not; when none does, the new place is the place. */
static void test_another_place(void)
{
        static const char *const names[] = { "sbx-p", "sbx-nobodys" };
        static const int slots[] = { 1, 2 };
        struct engine *g = NULL;
        struct store *s = NULL;
        struct boxes bs;
        pthread_t t;
        struct err e = { 0 };
        unsigned adopted = 0, lost = 0, rows = 0;
        char place[160];
        (void)unlink("store2.db");
        (void)unlink("sbx-nobodys.sock");
        for (unsigned orphans = 0; orphans < 2; orphans++) { /* first by its row, then without one */
                agent = start_agent(names + orphans, slots + orphans, 1);
                open_all("here", &g, &s, &bs, &t);
                CHECK_INT(store_set_place(s, "here", &e), 0);
                if (!orphans)
                        put_row(s, names[0], str_c("id"), 1, now_wall_ms() + 60000);
                close_all(g, s, &bs, t);
                open_all("there", &g, &s, &bs, &t);
                CHECK_INT(boxes_adopt(&bs, &adopted, &lost, &e), -EXDEV);
                CHECK(e.blame == ERR_USER && strstr(e.msg, "here") && strstr(e.msg, "there"));
                CHECK_INT(bs.registry.count + lost, 0);
                CHECK(store_get_place(s, place, sizeof place, &e) == 0 && strcmp(place, "here") == 0);
                CHECK(store_load(s, count_row, &rows, &e) == 0 && rows == 1 - orphans);
                close_all(g, s, &bs, t);
                (void)kill(agent, SIGKILL);
                (void)waitpid(agent, NULL, 0);
                open_all("there", &g, &s, &bs, &t);
                CHECK_INT(boxes_adopt(&bs, &adopted, &lost, &e), 0);
                CHECK_INT(lost, 1 - orphans);
                CHECK(store_get_place(s, place, sizeof place, &e) == 0 && strcmp(place, "there") == 0);
                close_all(g, s, &bs, t);
                rows = lost = 0;
        }
}

int main(void)
{
        if (!mkdtemp(dir) || chdir(dir) < 0 || uv_loop_init(&loop) < 0)
                return 1;
        log_setup(LOG_LEVEL_MAX, false, "test"); /* the warnings are meant */
        (void)signal(SIGPIPE, SIG_IGN); /* as the server does */
        RUN(test_restart);
        RUN(test_unsure_is_not_lost);
        RUN(test_another_place);
        CHECK_INT(uv_loop_close(&loop), 0);
        CHECK_INT(chdir("/"), 0);
        char rm[64];
        (void)snprintf(rm, sizeof rm, "rm -rf '%s'", dir);
        return system(rm) == 0 ? check_done() : 1;
}
