/* A real agent (agent.c, conn.c, exec.c, worker.c) as pid 1 of a pid namespace, in a small
 * root file system, driven over its unix socket as the server does it: once where no
 * cgroup holds execs together (a supervisor does) and once with real cgroups. */
#include "agent/agent.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/limits.h"
#include "check.h"
#include "os/clone.h"
#include "os/sys.h"
#include "wire/frame.h"

#define USER 1234

static char dir[] = "/tmp/cloche-test-agent-XXXXXX";
static char sock_path[64], root_path[64];
static struct seccomp_filter filter;
static struct cg cg = { .v1 = { -1, -1, -1 }, .v2 = -1, .top = { -1, -1, -1, -1 } };
static pid_t agent_pid;
static int alive[2]; /* its end tells the guard that we are gone: an agent outlives whoever made it */

/* --- the agent --------------------------------------------------------------------------- */

static void start_guard(pid_t pid)
{
        if (fork() != 0)
                return;
        char c;
        (void)close(alive[1]);
        (void)!read(alive[0], &c, 1);
        (void)kill(pid, SIGKILL);
        _exit(0);
}

static void become_agent(int listen_fd, int ready_fd)
{
        static const char *const links[][2] = { { "usr/bin", "bin" }, { "usr/lib", "lib" }, { "usr/lib64", "lib64" } };
        static struct agent_params p;
        struct err e = { 0 };
        p = (struct agent_params){ .name = "sbx-test", .slot = 5, .listen_fd = listen_fd, .ready_fd = ready_fd,
                                   .cg = { -1, { -1, -1, -1 }, -1, -1 }, .user_uid = USER, .memory = 64 << 20,
                                   .pids = 128, .cpus = 1, .filter = &filter, .cpuinfo = "processor\t: 0\nmodel\t: m\n" };
        if (cg.v2 >= 0 && cg_slot_open(&cg, 0, &p.cg, &e) < 0)
                _exit(90);
        if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 || mount("tmpfs", root_path, "tmpfs", 0, "mode=0755") < 0 ||
            chdir(root_path) < 0 || mkdir("usr", 0755) < 0 || mount("/usr", "usr", NULL, MS_BIND | MS_REC, NULL) < 0 ||
            mkdir("proc", 0755) < 0 || mount("proc", "proc", "proc", 0, NULL) < 0 || mkdir("dev", 0755) < 0 ||
            mkdir("info", 0755) < 0 || mkdir("workspace", 0755) < 0 || chown("workspace", USER, USER) < 0 ||
            mkdir("tmp", 0755) < 0 || chmod("tmp", 01777) < 0 || mknod("dev/null", S_IFCHR | 0666, makedev(1, 3)) < 0 ||
            chmod("dev/null", 0666) < 0)
                _exit(91);
        for (unsigned i = 0; i < 3; i++)
                if (symlink(links[i][0], links[i][1]) < 0)
                        _exit(92);
        if (close(open("info/meminfo", O_CREAT | O_WRONLY, 0644)) < 0 ||
            close(open("info/cpuinfo", O_CREAT | O_WRONLY, 0644)) < 0 || chroot(".") < 0 || chdir("/") < 0)
                _exit(93);
        p.info_fd = open("/info", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        agent_run(&p);
}

static bool start_agent(void)
{
        int p[2];
        struct sockaddr_un a = { .sun_family = AF_UNIX };
        struct agent_ready ready = { .code = -EIO };
        (void)snprintf(a.sun_path, sizeof a.sun_path, "%s", sock_path);
        (void)unlink(sock_path);
        if (pipe2(alive, O_CLOEXEC) < 0)
                return false;
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) < 0 || pipe2(p, O_CLOEXEC) < 0)
                return false;
        (void)fflush(stdout);
        int born_in = cg_slot_agent_dir(&cg, 0);
        agent_pid = clone_fork(CLONE_NEWPID | CLONE_NEWNS, born_in, NULL);
        if (agent_pid == 0) {
                (void)close(alive[1]);
                become_agent(fd, p[1]);
        }
        start_guard(agent_pid);
        if (born_in >= 0)
                (void)close(born_in);
        (void)close(p[1]);
        (void)close(fd);
        if (read(p[0], &ready, sizeof ready) != sizeof ready)
                ready.code = -EPIPE;
        (void)close(p[0]);
        if (ready.code < 0)
                printf("agent: %d %s\n", ready.code, ready.msg);
        return ready.code == 0;
}

static void stop_agent(void)
{
        int status = 0;
        CHECK(waitpid(agent_pid, &status, WNOHANG) == 0); /* nothing that came has ended it */
        (void)close(alive[1]); /* the guard does it */
        (void)waitpid(agent_pid, &status, 0);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        (void)close(alive[0]);
        (void)wait(NULL);
}

/* --- the server's side ------------------------------------------------------------------ */

static int dial(void)
{
        struct sockaddr_un a = { .sun_family = AF_UNIX };
        struct timeval limit = { .tv_sec = 20 };
        (void)snprintf(a.sun_path, sizeof a.sun_path, "%s", sock_path);
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a) < 0)
                CHECK(!"the agent answers");
        (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        return fd;
}

struct outcome {
        enum frame_type last; /* FRAME_NONE: the connection just ended */
        struct buf out, err, data;
        uint64_t code, signal, reason, blame, total[2], count;
        char msg[512];
};

static void take_fields(struct outcome *o, struct str payload)
{
        enum field tag;
        struct str v;
        while (field_next(&payload, &tag, &v) > 0) {
                uint64_t *at = tag == FIELD_CODE ? &o->code : tag == FIELD_SIGNAL ? &o->signal
                               : tag == FIELD_REASON ? &o->reason : tag == FIELD_BLAME ? &o->blame
                               : tag == FIELD_STDOUT_TOTAL ? &o->total[0] : tag == FIELD_STDERR_TOTAL ? &o->total[1]
                               : tag == FIELD_COUNT ? &o->count : NULL;
                if (at)
                        CHECK(field_u64(v, at));
                if (tag == FIELD_MESSAGE || tag == FIELD_NAME)
                        (void)snprintf(o->msg, sizeof o->msg, "%.*s", (int)v.n, v.p);
        }
}

/* Everything until an answer's last frame, or until the agent hangs up. */
static void hear_on(int fd, struct outcome *o)
{
        _cleanup_buf_ struct buf b = { 0 };
        struct frame f;
        int r;
        *o = (struct outcome){ .last = FRAME_NONE };
        while ((r = frame_read(fd, &b, &f)) > 0) {
                o->last = f.type;
                if (f.type == FRAME_STDOUT || f.type == FRAME_STDERR || f.type == FRAME_DATA)
                        buf_add(f.type == FRAME_STDOUT ? &o->out : f.type == FRAME_STDERR ? &o->err : &o->data,
                                f.payload.p, f.payload.n);
                else
                        take_fields(o, f.payload);
                if (f.type == FRAME_EXIT || f.type == FRAME_FAIL)
                        return;
        }
        CHECK(r == 0 || r == -ECONNRESET);
}

static void hear(int fd, struct outcome *o)
{
        hear_on(fd, o);
        (void)close(fd);
}

static void outcome_free(struct outcome *o)
{
        buf_free(&o->out);
        buf_free(&o->err);
        buf_free(&o->data);
}

#define _cleanup_outcome_ _cleanup_(outcome_free)

static void send_exec_on(int fd, const char *script, uint64_t timeout_ms, uint64_t cap)
{
        _cleanup_buf_ struct buf b = { 0 };
        size_t mark = frame_begin(&b, FRAME_EXEC);
        field_add_str(&b, FIELD_ARG, "sh");
        field_add_str(&b, FIELD_ARG, "-c");
        field_add_str(&b, FIELD_ARG, script);
        field_add_u64(&b, FIELD_TIMEOUT_MS, timeout_ms);
        field_add_u64(&b, FIELD_OUTPUT_CAP, cap);
        frame_finish(&b, mark);
        CHECK(send(fd, b.data, b.len, MSG_NOSIGNAL) == (ssize_t)b.len);
}

static int send_exec(const char *script, uint64_t timeout_ms, uint64_t cap)
{
        int fd = dial();
        send_exec_on(fd, script, timeout_ms, cap);
        return fd;
}

static void run(const char *script, struct outcome *o)
{
        hear(send_exec(script, 20000, 65536), o);
}

/* Waits until no process inside has that name. */
static bool none_left(const char *comm)
{
        char script[128];
        (void)snprintf(script, sizeof script, "grep -lx %s /proc/[0-9]*/comm", comm);
        for (int i = 0; i < 400; i++) {
                _cleanup_outcome_ struct outcome o;
                run(script, &o);
                if (o.out.len == 0)
                        return true;
                (void)usleep(5000);
        }
        return false;
}

/* --- what is checked in both worlds ------------------------------------------------------ */

static void check_ping(void)
{
        _cleanup_buf_ struct buf b = { 0 };
        frame_add(&b, FRAME_PING, NULL, 0);
        for (int drip = 0; drip < 2; drip++) {
                _cleanup_outcome_ struct outcome o;
                int fd = dial();
                for (size_t i = 0; i < b.len; i += drip ? 1 : b.len)
                        CHECK(send(fd, b.data + i, drip ? 1 : b.len, 0) > 0);
                hear(fd, &o);
                CHECK_INT(o.last, FRAME_HELLO);
                CHECK_STR(o.msg, "sbx-test");
                CHECK_INT(o.count, 5);
        }
}

static void check_exec(void)
{
        static const struct { const char *script, *out, *err; int code, signal, reason; } rows[] = {
                { "echo hi; echo no >&2", "hi\n", "no\n", 0, 0, EXIT_EXITED },
                { "exit 3", "", "", 3, 0, EXIT_EXITED },
                { "kill -9 $$", "", "", 137, 9, EXIT_SIGNALED },
                { "pwd; id -u", "/workspace\n1234\n", "", 0, 0, EXIT_EXITED },
                { "cat", "", "", 0, 0, EXIT_EXITED },
                { "echo $HOME $CLOCHE_API_KEY", "/workspace\n", "", 0, 0, EXIT_EXITED },
                { "printf 'a\\0b'", "a", "", 0, 0, EXIT_EXITED },
                { "cat /info/meminfo | head -1", "MemTotal:          65536 kB\n", "", 0, 0, EXIT_EXITED },
                { "head -2 /info/cpuinfo", "processor\t: 0\nmodel\t: m\n", "", 0, 0, EXIT_EXITED },
        };
        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
                _cleanup_outcome_ struct outcome o;
                run(rows[i].script, &o);
                CHECK_INT(o.last, FRAME_EXIT);
                CHECK_STR(buf_cstr(&o.out), rows[i].out);
                CHECK_STR(buf_cstr(&o.err), rows[i].err);
                CHECK_INT(o.code, rows[i].code);
                CHECK_INT(o.signal, rows[i].signal);
                CHECK_INT(o.reason, rows[i].reason);
        }
}

static void check_locked_down(void)
{
        _cleanup_outcome_ struct outcome o, p;
        run("grep -E '^(CapInh|CapPrm|CapEff|CapBnd|CapAmb|NoNewPrivs|Seccomp):' /proc/self/status", &o);
        CHECK_STR(buf_cstr(&o.out), "CapInh:\t0000000000000000\nCapPrm:\t0000000000000000\nCapEff:\t0000000000000000\n"
                                    "CapBnd:\t0000000000000000\nCapAmb:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\n");
        run("kill -9 1 2>&1; kill -STOP 1 2>&1; ls /proc/1/fd 2>&1 | grep -c denied; ls -d /proc/self/fd/[3-9]* 2>/dev/null "
            "| grep -v 'fd/[34]$'", &p);
        CHECK(strstr(buf_cstr(&p.out), "not permitted") != NULL);
        CHECK(strstr(p.out.data, "\n1\n") != NULL);
}

static void check_not_started(void)
{
        static const char *const missing[] = { "no-such-program", "/nowhere/program" };
        for (unsigned i = 0; i < 2; i++) {
                _cleanup_buf_ struct buf b = { 0 };
                _cleanup_outcome_ struct outcome o;
                size_t mark = frame_begin(&b, FRAME_EXEC);
                field_add_str(&b, FIELD_ARG, missing[i]);
                frame_finish(&b, mark);
                int fd = dial();
                CHECK(send(fd, b.data, b.len, 0) == (ssize_t)b.len);
                hear(fd, &o);
                CHECK(o.last == FRAME_EXIT && o.code == 127 && o.reason == EXIT_EXITED);
                CHECK(strncmp(buf_cstr(&o.err), "Command not found: ", 19) == 0);
        }
        _cleanup_buf_ struct buf b = { 0 };
        _cleanup_outcome_ struct outcome o;
        size_t mark = frame_begin(&b, FRAME_EXEC);
        field_add_str(&b, FIELD_ARG, "true");
        field_add_str(&b, FIELD_WORKDIR, "/nowhere");
        frame_finish(&b, mark);
        int fd = dial();
        CHECK(send(fd, b.data, b.len, 0) == (ssize_t)b.len);
        hear(fd, &o);
        CHECK(o.last == FRAME_FAIL && o.code == ENOENT && o.blame == ERR_USER);
        CHECK_STR(o.msg, "cannot enter workdir /nowhere: No such file or directory");
}

static void check_timeout(void)
{
        _cleanup_outcome_ struct outcome o;
        hear(send_exec("echo before; sleep 1001 & setsid sleep 1001 & (sleep 1001 &) ; trap '' TERM; sleep 1001", 150, 4096),
             &o);
        CHECK_INT(o.last, FRAME_EXIT);
        CHECK_INT(o.reason, EXIT_TIMEOUT);
        CHECK_STR(buf_cstr(&o.out), "before\n");
        CHECK(none_left("sleep"));
}

static bool is_there(const char *comm)
{
        char script[128];
        (void)snprintf(script, sizeof script, "grep -lx %s /proc/[0-9]*/comm", comm);
        _cleanup_outcome_ struct outcome o;
        run(script, &o);
        return o.out.len > 0;
}

static void check_abandoned(void)
{
        int fd = send_exec("exec tail -f /dev/null", 20000, 4096);
        for (int i = 0; i < 400 && !is_there("tail"); i++)
                (void)usleep(5000);
        CHECK(is_there("tail"));
        (void)close(fd); /* nobody waits any more */
        CHECK(none_left("tail"));
}

/* The leader's exit is the exec's; what it left behind lives on and holds nothing up. */
static void check_background(void)
{
        _cleanup_outcome_ struct outcome o, p;
        run("sleep 1002 & echo started", &o);
        CHECK(o.last == FRAME_EXIT && o.code == 0);
        CHECK_STR(buf_cstr(&o.out), "started\n");
        for (int i = 0; i < 400 && !is_there("sleep"); i++) /* it may be sh for another moment */
                (void)usleep(5000);
        run("grep -lx sleep /proc/[0-9]*/comm | wc -l; pkill -x sleep || kill $(pidof sleep)", &p);
        CHECK(strncmp(buf_cstr(&p.out), "1\n", 2) == 0);
        CHECK(none_left("sleep"));
}

/* After an exec's answer, whatever it was, the connection serves the next one; what an
 * earlier command left behind does not reach into it. Bytes during an exec end both. */
static void check_reuse(void)
{
        static const struct { const char *script, *out; uint64_t timeout_ms, code; } rows[] = {
                { "echo one", "one\n", 20000, 0 },
                { "echo two; (sleep 0.2; echo late) & exit 3", "two\n", 20000, 3 },
                { "sleep 50", "", 60, 124 },
                { "echo four", "four\n", 20000, 0 },
        };
        int fd = dial();
        for (unsigned i = 0; i < ARRAY_SIZE(rows); i++) {
                _cleanup_outcome_ struct outcome o;
                send_exec_on(fd, rows[i].script, rows[i].timeout_ms, 65536);
                hear_on(fd, &o);
                CHECK_INT(o.last, FRAME_EXIT);
                CHECK_STR(buf_cstr(&o.out), rows[i].out);
                CHECK_INT(o.code, rows[i].code);
        }
        send_exec_on(fd, "sleep 51.5", 20000, 65536);
        send_exec_on(fd, "echo out of turn", 20000, 65536);
        _cleanup_outcome_ struct outcome o;
        hear(fd, &o);
        CHECK_INT(o.last, FRAME_NONE);
}

static void check_big_output(void)
{
        _cleanup_outcome_ struct outcome o, p;
        hear(send_exec("yes | head -c 3000000; echo; echo the end", 20000, 10000), &o);
        CHECK(o.last == FRAME_EXIT && o.code == 0);
        CHECK_INT(o.total[0], 3000000 + 9);
        CHECK(o.out.len > 10000 && o.out.len < 10100);
        CHECK(strstr(buf_cstr(&o.out), "\n[... 2990009 bytes left out ...]\n") != NULL);
        CHECK_STR(o.out.data + o.out.len - 8, "the end\n");
        /* several frames of it, all kept */
        hear(send_exec("head -c 3000000 /usr/bin/env /usr/lib/*-linux-gnu/libc.so.6 | head -c 2500000", 20000, 4000000), &p);
        CHECK(p.out.len == p.total[0] && p.out.len > 100000);
}

static void check_many_at_once(void)
{
        int fd[24];
        for (unsigned i = 0; i < 24; i++) {
                char script[64];
                (void)snprintf(script, sizeof script, "echo %u; exit %u", i, i);
                fd[i] = send_exec(script, 20000, 4096);
        }
        for (unsigned i = 0; i < 24; i++) {
                _cleanup_outcome_ struct outcome o;
                hear(fd[i], &o);
                CHECK(o.last == FRAME_EXIT && o.code == i && (unsigned)atoi(buf_cstr(&o.out)) == i);
        }
}

static void check_hostile_frames(void)
{
        static const struct { const char *bytes; size_t n; enum frame_type answer; } rows[] = {
                { "\0\0\0\0\0\0\0\0", 8, FRAME_NONE },             /* no type */
                { "\0\0\0\0\377\0\0\0", 8, FRAME_NONE },           /* unknown type */
                { "\377\377\377\377\1\0\0\0", 8, FRAME_NONE },     /* 4 GiB to come */
                { "\1\0\100\0\2\0\0\0", 8, FRAME_NONE },           /* one byte more than allowed */
                { "\0\0\0\0\1\0\0\1", 8, FRAME_NONE },             /* reserved bytes */
                { "\0\0\0\0\5\0\0\0", 8, FRAME_FAIL },             /* DATA first */
                { "\0\0\0\0\12\0\0\0", 8, FRAME_FAIL },            /* an answer */
                { "\0\0\0\0\2\0\0\0", 8, FRAME_FAIL },             /* an empty EXEC */
                { "\4\0\0\0\2\0\0\0abcd", 12, FRAME_FAIL },        /* no fields */
                { "\6\0\0\0\2\0\0\0\1\0\377\377\377\377", 14, FRAME_FAIL }, /* a field longer than the frame */
                { "\0\0\0\0\3\0\0\0", 8, FRAME_FAIL },             /* UNTAR to nowhere */
                { "\0\0\0\0\4\0\0\0", 8, FRAME_FAIL },             /* TAR of nothing */
                { "", 0, FRAME_NONE },
                { "\0\0\0", 3, FRAME_NONE },
                { "\10\0\0\0\1\0\0\0abc", 11, FRAME_NONE },        /* leaves in the middle */
        };
        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
                _cleanup_outcome_ struct outcome o;
                int fd = dial();
                if (rows[i].n)
                        CHECK(send(fd, rows[i].bytes, rows[i].n, 0) == (ssize_t)rows[i].n);
                (void)shutdown(fd, SHUT_WR);
                hear(fd, &o);
                if (o.last != rows[i].answer) {
                        printf("row %zu: %s %s\n", i, frame_name(o.last), o.msg);
                        CHECK(!"the answer is right");
                }
        }
}

static void send_path(int fd, enum frame_type type, const char *path)
{
        _cleanup_buf_ struct buf b = { 0 };
        size_t mark = frame_begin(&b, type);
        field_add_str(&b, FIELD_PATH, path);
        frame_finish(&b, mark);
        CHECK(send(fd, b.data, b.len, MSG_NOSIGNAL) == (ssize_t)b.len);
}

static void check_files(void)
{
        _cleanup_outcome_ struct outcome made, down, up, seen, bad, none;
        run("mkdir -p d/e; echo one > d/f; head -c 300000 /usr/bin/env > d/e/g; ln -s f d/l; cat d/e/g | cksum", &made);
        CHECK_INT(made.code, 0);
        int fd = dial();
        send_path(fd, FRAME_TAR, "/workspace/d");
        hear(fd, &down);
        CHECK(down.last == FRAME_END && down.data.len > 100);
        fd = dial();
        send_path(fd, FRAME_UNTAR, "/workspace/copy");
        for (size_t at = 0; at < down.data.len; at += 1000)
                CHECK_INT(frame_write(fd, FRAME_DATA, down.data.data + at,
                                      down.data.len - at < 1000 ? down.data.len - at : 1000), 0);
        CHECK_INT(frame_write(fd, FRAME_END, NULL, 0), 0);
        hear(fd, &up);
        CHECK_INT(up.last, FRAME_DONE);
        run("cat $(find copy -name g) | cksum; cat $(find copy -name l); stat -c %u copy/. ", &seen);
        CHECK(strncmp(buf_cstr(&seen.out), buf_cstr(&made.out), made.out.len) == 0);
        CHECK(strstr(seen.out.data, "\none\n1234\n") != NULL);
        fd = dial();
        send_path(fd, FRAME_UNTAR, "/workspace/x");
        CHECK_INT(frame_write(fd, FRAME_DATA, "this is no archive at all", 25), 0);
        (void)frame_write(fd, FRAME_END, NULL, 0);
        hear(fd, &bad);
        CHECK(bad.last == FRAME_FAIL && bad.blame == ERR_USER && bad.msg[0]);
        fd = dial();
        send_path(fd, FRAME_TAR, "/workspace/nothing-here");
        hear(fd, &none);
        CHECK(none.last == FRAME_FAIL && none.code == ENOENT && none.data.len == 0);
}

/* As many transfers as are allowed, all waiting; more are refused, the rest goes on. */
static void check_too_many_transfers(void)
{
        int fd[100];
        unsigned refused = 0;
        for (unsigned i = 0; i < 100; i++) {
                fd[i] = dial();
                send_path(fd[i], FRAME_UNTAR, "/workspace/many");
        }
        /* Connections are taken in order: with this answer all of them have had theirs. */
        check_ping();
        for (unsigned i = 0; i < 100; i++) {
                struct pollfd p = { fd[i], POLLIN, 0 };
                if (poll(&p, 1, 0) <= 0)
                        continue;
                _cleanup_outcome_ struct outcome o;
                hear(fd[i], &o);
                fd[i] = -1;
                CHECK(o.last == FRAME_FAIL && o.code == EAGAIN);
                refused++;
        }
        CHECK(refused > 0 && refused < 90);
        for (unsigned i = 0; i < 100; i++)
                close_fd(&fd[i]);
        CHECK(none_left("cloche-files"));
}

static void check_everything(void)
{
        check_ping();
        check_exec();
        check_locked_down();
        check_not_started();
        check_timeout();
        check_abandoned();
        check_background();
        check_reuse();
        check_big_output();
        check_many_at_once();
        check_hostile_frames();
        check_files();
        check_too_many_transfers();
        check_ping();
}

static void test_without_cgroups(void)
{
        if (geteuid() != 0)
                SKIP("needs root");
        CHECK(start_agent());
        check_everything();
        stop_agent();
}

static void test_with_cgroups(void)
{
        struct err e = { 0 };
        char group[64];
        (void)snprintf(group, sizeof group, "cloche-test-agent-%d", (int)getpid());
        if (geteuid() != 0 || cg_open(&cg, group, &e) < 0)
                SKIP("needs root and cgroups");
        if (cg.v2 < 0) {
                cg_remove_if_empty(&cg);
                cg_close(&cg);
                SKIP("no unified hierarchy");
        }
        struct cg_limits l = { 256 << 20, 200, 2000 };
        CHECK_INT(cg_slot_make(&cg, 0, 0, &e), 0);
        CHECK_INT(cg_slot_limit(&cg, 0, &l, &e), 0);
        CHECK(start_agent());
        check_everything();
        stop_agent();
        for (int i = 0; i < 2000 && cg_slot_populated(&cg, 0); i++)
                (void)usleep(1000);
        cg_slot_clean(&cg, 0);
        CHECK_INT(cg_slot_remove(&cg, 0), 0);
        cg_remove_if_empty(&cg);
        cg_close(&cg);
}

/* What cannot be set up is told over the pipe, and the agent is gone. */
static void test_failed_start(void)
{
        if (geteuid() != 0)
                SKIP("needs root");
        int p[2], status = 0;
        struct agent_ready ready = { 0 };
        if (pipe2(p, O_CLOEXEC) < 0)
                abort();
        pid_t pid = fork();
        if (pid == 0) {
                struct agent_params bad = { .listen_fd = open("/dev/null", O_RDWR), .info_fd = -1, .ready_fd = p[1],
                                            .cg = { -1, { -1, -1, -1 }, -1, -1 }, .cpus = 1, .filter = &filter,
                                            .cpuinfo = "" };
                agent_run(&bad);
        }
        (void)close(p[1]);
        CHECK(read(p[0], &ready, sizeof ready) == sizeof ready);
        CHECK_INT(ready.code, -ENOTSOCK);
        CHECK(strstr(ready.msg, "the agent cannot start") != NULL);
        (void)waitpid(pid, &status, 0);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 1);
        (void)close(p[0]);
}

int main(void)
{
        struct err e = { 0 };
        (void)signal(SIGPIPE, SIG_IGN);
        if (!mkdtemp(dir) || seccomp_filter_build(&filter, &e) < 0)
                return 1;
        (void)setenv("CLOCHE_API_KEY", "secret", 1);
        (void)snprintf(sock_path, sizeof sock_path, "%s/a.sock", dir);
        (void)snprintf(root_path, sizeof root_path, "%s/root", dir);
        (void)mkdir(root_path, 0755);
        RUN(test_failed_start);
        RUN(test_without_cgroups);
        RUN(test_with_cgroups);
        (void)unlink(sock_path);
        (void)rmdir(root_path);
        (void)rmdir(dir);
        seccomp_filter_free(&filter);
        return check_done();
}
