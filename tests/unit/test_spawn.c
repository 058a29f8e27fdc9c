/* As root everything runs in a child with a small root file system of its own: a tmpfs
 * with the host's /usr in it and a /workspace. */
#include "agent/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "os/sys.h"

#define USER 1234

static char dir[] = "/tmp/cloche-test-spawn-XXXXXX";
static int null_fd, out_fd;
static const int no_tasks[CG_CONTROLLER_MAX] = { -1, -1, -1 };
static char out[8192];
static struct spawn last;

static bool enter_small_root(void)
{
        static const char *const links[][2] = { { "usr/bin", "bin" }, { "usr/lib", "lib" }, { "usr/lib64", "lib64" } };
        if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
            mount("tmpfs", dir, "tmpfs", 0, "mode=0755") < 0 || chdir(dir) < 0)
                return false;
        if (mkdir("usr", 0755) < 0 || mount("/usr", "usr", NULL, MS_BIND | MS_REC, NULL) < 0 ||
            mkdir("workspace", 0755) < 0 || chown("workspace", USER, USER) < 0 || mkdir("locked", 0700) < 0)
                return false;
        for (unsigned i = 0; i < 3; i++)
                if (symlink(links[i][0], links[i][1]) < 0)
                        return false;
        return chroot(".") == 0 && chdir("/") == 0;
}

/* The exit code of argv in workdir, its output in out; -1 when it did not start. */
static int run_env(const char *workdir, char *const *argv, char *const *envp)
{
        int status = -1;
        char *dup = strdup(workdir);
        CHECK_INT(ftruncate(out_fd, 0), 0);
        (void)lseek(out_fd, 0, SEEK_SET);
        last = (struct spawn){ .argv = argv, .envp = envp, .workdir = dup, .uid = USER, .in = null_fd, .out = out_fd,
                               .err = out_fd, .tasks = no_tasks, .cpus = 1 };
        pid_t pid = spawn_command(&last, -1);
        CHECK(pid > 0);
        (void)waitpid(pid, &status, 0);
        CHECK_STR(dup, workdir); /* restored */
        free(dup);
        last.workdir = NULL;
        ssize_t n = pread(out_fd, out, sizeof out - 1, 0);
        out[n > 0 ? n : 0] = '\0';
        if (last.stage != SPAWN_STARTED)
                return -1;
        return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int run(const char *workdir, const char *script)
{
        char sh[] = "sh", c[] = "-c", path[] = "PATH=/usr/bin:/bin";
        char *text = strdup(script);
        char *const argv[] = { sh, c, text, NULL }, *const envp[] = { path, NULL };
        int r = run_env(workdir, argv, envp);
        free(text);
        return r;
}

static void check_identity(void)
{
        CHECK_INT(run("/workspace", "id -u; id -g; id -G; pwd"), 0);
        CHECK_STR(out, "1234\n1234\n1234\n/workspace\n");
        CHECK_INT(run("/", "exit 7"), 7);
        CHECK_INT(run("/", "kill -9 $$"), 128 + 9);
        CHECK_INT(run("/", "trap '' PIPE; cat"), 0); /* stdin is empty */
        CHECK_INT(run("/", "ulimit -Sn"), 0);
        CHECK_STR(out, "1024\n");
        CHECK_INT(run("/", "nproc"), 0);
        CHECK_STR(out, "1\n");
}

/* Signals as a fresh process has them, though the agent blocks all and ignores SIGPIPE. */
static void check_signals(void)
{
        CHECK_INT(run("/", "(kill -TERM $$; sleep 5); exit 3"), 128 + SIGTERM);
        CHECK_INT(run("/", "kill -PIPE $$; exit 3"), 128 + SIGPIPE);
}

/* Not one fd of the agent's is left open but 0, 1 and 2. */
static void check_fds(void)
{
        int extra = open("/", O_RDONLY | O_DIRECTORY); /* without CLOEXEC */
        CHECK_INT(run("/", "for i in 3 4 5 6 7 8 9; do (eval \": <&$i\") 2>&- && echo open $i; done; exit 0"), 0);
        CHECK_STR(out, "");
        (void)close(extra);
}

static void check_workdirs(void)
{
        CHECK_INT(run("/workspace/a/b//c", "pwd"), 0); /* made on the way */
        CHECK_STR(out, "/workspace/a/b/c\n");
        struct stat st;
        CHECK(stat("/workspace/a/b/c", &st) == 0 && st.st_uid == USER && (st.st_mode & 07777) == 0755);
        CHECK_INT(run("/workspace/", "pwd"), 0);
        CHECK_INT(run("/workspace/x/../../elsewhere", "pwd"), -1); /* no mkdir outside */
        CHECK(last.stage == SPAWN_WORKDIR && last.error == -ENOENT);
        CHECK(access("/elsewhere", F_OK) < 0 && access("/workspace/x", F_OK) < 0);
        CHECK_INT(run("/workspace/d/..", "pwd"), -1);
        CHECK_INT(run("/elsewhere", "pwd"), -1);
        CHECK(last.stage == SPAWN_WORKDIR && last.error == -ENOENT);
        CHECK(access("/elsewhere", F_OK) < 0);
        CHECK_INT(run("/workspaceless/x", "pwd"), -1);
        CHECK_INT(run("/locked", "pwd"), -1);
        CHECK(last.stage == SPAWN_WORKDIR && last.error == -EACCES);
        int fd = open("/workspace/file", O_CREAT | O_WRONLY, 0644);
        (void)close(fd);
        CHECK_INT(run("/workspace/file/below", "pwd"), -1);
        CHECK(last.stage == SPAWN_WORKDIR && last.error == -ENOTDIR);
        CHECK_INT(symlink("/usr", "/workspace/link"), 0);
        CHECK_INT(run("/workspace/link", "pwd -P"), 0);
        CHECK_STR(out, "/usr\n");
        CHECK_INT(run("/workspace/link/new", "pwd"), -1); /* the sandbox user may not write there */
}

static void write_file(const char *path, const char *text, mode_t mode)
{
        int fd = open(path, O_CREAT | O_WRONLY | O_TRUNC, 0600);
        CHECK(write(fd, text, strlen(text)) == (ssize_t)strlen(text));
        (void)close(fd);
        (void)chmod(path, mode);
}

static void check_search(void)
{
        char here[] = "PATH=:/workspace/bin1:/workspace/bin2", none[] = "OTHER=1", tool[] = "tool", rel[] = "./tool",
             sh[] = "sh", c[] = "-c", echo[] = "echo $0", empty[] = "", missing[] = "/workspace/missing",
             directory[] = "/workspace", text[] = "textfile";
        char *const with[] = { here, NULL }, *const without[] = { none, NULL };
        (void)mkdir("/workspace/bin1", 0755);
        (void)mkdir("/workspace/bin2", 0755);
        write_file("/workspace/bin1/tool", "#!/bin/sh\necho one\n", 0644); /* not executable */
        write_file("/workspace/bin2/tool", "#!/bin/sh\necho two\n", 0755);
        char *const t[] = { tool, NULL };
        CHECK_INT(run_env("/workspace", t, with), 0);
        CHECK_STR(out, "two\n");
        write_file("/workspace/tool", "#!/bin/sh\necho here\n", 0755);
        CHECK_INT(run_env("/workspace", t, with), 0); /* an empty entry is the directory we are in */
        CHECK_STR(out, "here\n");
        char *const r[] = { rel, NULL };
        CHECK_INT(run_env("/workspace/bin2", r, without), 0);
        CHECK_STR(out, "two\n");
        (void)unlink("/workspace/tool");
        (void)chmod("/workspace/bin2/tool", 0644);
        CHECK_INT(run_env("/", t, with), -1);
        CHECK(last.stage == SPAWN_EXEC && last.error == -EACCES); /* says more than ENOENT */
        char *const s[] = { sh, c, echo, NULL };
        CHECK_INT(run_env("/", s, without), 0); /* the default path */
        char *const e[] = { empty, NULL };
        CHECK_INT(run_env("/", e, without), -1);
        CHECK(last.stage == SPAWN_EXEC && last.error == -ENOENT);
        char *const m[] = { missing, NULL };
        CHECK_INT(run_env("/", m, without), -1);
        CHECK(last.stage == SPAWN_EXEC && last.error == -ENOENT);
        char *const d[] = { directory, NULL };
        CHECK_INT(run_env("/", d, without), -1);
        CHECK(last.stage == SPAWN_EXEC && last.error == -EACCES);
        write_file("/workspace/bin1/textfile", "no program\n", 0755);
        char *const n[] = { text, NULL };
        CHECK_INT(run_env("/", n, with), -1);
        CHECK(last.stage == SPAWN_EXEC && last.error == -ENOEXEC);
        /* a path entry longer than any path is passed over */
        char *huge = malloc(9000);
        memset(huge, 'x', 9000);
        memcpy(huge, "PATH=", 5);
        (void)strcpy(huge + 8980, ":/usr/bin");
        char *const h[] = { huge, NULL };
        CHECK_INT(run_env("/", s, h), 0);
        free(huge);
}

static void check_no_privileges(void)
{
        CHECK_INT(run("/", "touch /owned 2>&-"), 1);
        CHECK_INT(run("/", "chown 0 /workspace 2>&-"), 1);
        CHECK(access("/owned", F_OK) < 0);
}

static void check_early_failures(void)
{
        char t[] = "true";
        char *const argv[] = { t, NULL }, *const envp[] = { NULL };
        char root[] = "/";
        struct spawn s = { .argv = argv, .envp = envp, .workdir = root, .uid = USER, .in = null_fd, .out = -1,
                           .err = out_fd, .tasks = no_tasks, .cpus = 1 };
        pid_t pid = spawn_command(&s, -1);
        CHECK(pid > 0 && s.stage == SPAWN_FDS && s.error == -EBADF);
        (void)waitpid(pid, NULL, 0);
        int tasks[CG_CONTROLLER_MAX] = { -1, null_fd, 9999 };
        s.out = out_fd;
        s.tasks = tasks;
        pid = spawn_command(&s, -1);
        CHECK(pid > 0 && s.stage == SPAWN_CGROUP && s.error == -EBADF);
        (void)waitpid(pid, NULL, 0);
        CHECK(spawn_command(&s, null_fd) == -EBADF); /* no cgroup: no process at all */
}

static void in_small_root(void)
{
        sigset_t all;
        sigfillset(&all);
        (void)sigprocmask(SIG_SETMASK, &all, NULL); /* as the agent does */
        (void)signal(SIGPIPE, SIG_IGN);
        if (!enter_small_root()) {
                printf("no small root: %s\n", strerror(errno));
                check_failures++;
                return;
        }
        check_identity();
        check_signals();
        check_fds();
        check_workdirs();
        check_search();
        check_no_privileges();
        check_early_failures();
}

static void test_commands(void)
{
        int status = -1;
        if (geteuid() != 0)
                SKIP("needs root");
        (void)fflush(stdout);
        pid_t pid = fork();
        if (pid == 0) {
                check_failures = 0;
                in_small_root();
                (void)fflush(stdout);
                _exit(check_failures ? 1 : 0);
        }
        (void)waitpid(pid, &status, 0);
        CHECK_INT(status, 0);
}

static void test_workdir(void)
{
        static const struct { const char *given, *path; } rows[] = {
                { NULL, "/workspace" }, { "", "/workspace" }, { "a", "/workspace/a" }, { "a/b", "/workspace/a/b" },
                { "/", "/" }, { "/etc", "/etc" }, { ".", "/workspace/." }, { "..", "/workspace/.." },
        };
        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
                char *p = spawn_workdir(rows[i].given);
                CHECK_STR(p, rows[i].path);
                free(p);
        }
}

int main(void)
{
        if (!mkdtemp(dir))
                return 1;
        null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
        out_fd = memfd_create("out", MFD_CLOEXEC);
        RUN(test_workdir);
        RUN(test_commands);
        (void)rmdir(dir);
        return check_done();
}
