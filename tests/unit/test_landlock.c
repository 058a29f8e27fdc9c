#include "os/landlock.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "os/caps.h"

static char dir[] = "/tmp/cloche-test-lock-XXXXXX";
static char state[64], other[64];

static int make_file(const char *where, const char *name)
{
        char path[128];
        (void)snprintf(path, sizeof path, "%s/%s", where, name);
        int fd = open(path, O_CREAT | O_RDWR | O_TRUNC, 0600);
        if (fd >= 0)
                (void)close(fd);
        return fd < 0 ? -errno : 0;
}

static void in_the_cage(void)
{
        struct err e = { 0 };
        char path[128];
        int r = lockdown_server(state, &e);
        CHECK(r == 0 || r == 1);
        CHECK_STR(e.msg, "");
        CHECK(caps_effective() == 0);
        CHECK_INT(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0), 1);
        CHECK_INT(caps_set(1), -EPERM);
        CHECK(setuid(0) == 0 && caps_effective() == 0); /* uid 0 means nothing */
        if (r == 1)
                return; /* no Landlock here: the rest is not in force */
        CHECK_INT(make_file(state, "store.db"), 0);
        (void)snprintf(path, sizeof path, "%s/run/a.sock", state);
        struct sockaddr_un a = { .sun_family = AF_UNIX };
        (void)snprintf(a.sun_path, sizeof a.sun_path, "%s/run/a.sock", state);
        int fd = socket(AF_UNIX, SOCK_STREAM, 0);
        CHECK_INT(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
        CHECK_INT(unlink(path), 0);
        CHECK_INT(make_file(other, "new"), -EACCES);
        (void)snprintf(path, sizeof path, "%s/secret", other);
        CHECK(open(path, O_RDONLY) < 0 && errno == EACCES);
        CHECK(open(path, O_WRONLY) < 0 && errno == EACCES);
        CHECK(unlink(path) < 0 && errno == EACCES);
        CHECK(open("/etc/passwd", O_RDONLY) < 0 && errno == EACCES);
        CHECK(open("/", O_RDONLY | O_DIRECTORY) < 0 && errno == EACCES);
        char away[160];
        (void)snprintf(path, sizeof path, "%s/store.db", state);
        (void)snprintf(away, sizeof away, "%s/moved", other);
        CHECK(rename(path, away) < 0);
        CHECK(link(path, away) < 0);
        (void)snprintf(away, sizeof away, "%s/link", state);
        CHECK(symlink("/etc/passwd", away) < 0 && errno == EACCES);
        (void)snprintf(away, sizeof away, "%s/tool", state);
        char *const argv[] = { away, NULL }, *const envp[] = { NULL };
        (void)execve("/bin/true", argv, envp);
        CHECK(errno == EACCES || errno == EPERM);
        (void)execve(away, argv, envp);
        CHECK(errno == EACCES || errno == EPERM);
#ifndef CLOCHE_SANITIZE
        /* Nor what has no path: what came over the network can be put into a memfd. */
        fd = memfd_create("tool", 0);
        CHECK(write(fd, "#!/bin/sh\n", 10) == 10);
        (void)fexecve(fd, argv, envp);
        CHECK_INT(errno, EPERM);
#endif
}

static void test_cage(void)
{
        int status = -1;
        (void)fflush(stdout);
        pid_t pid = fork();
        if (pid == 0) {
                check_failures = 0;
                in_the_cage();
                (void)fflush(stdout);
                _exit(check_failures ? 1 : 0);
        }
        (void)waitpid(pid, &status, 0);
        CHECK_INT(status, 0);
}

/* As somebody without any capability: nothing to drop, the same cage. */
static void as_nobody(void)
{
        CHECK_INT(chown(state, 4321, 4321), 0);
        if (setresgid(4321, 4321, 4321) < 0 || setresuid(4321, 4321, 4321) < 0)
                _exit(3);
        struct err e = { 0 };
        int r = lockdown_server(state, &e);
        CHECK(r == 0 || r == 1);
        CHECK_STR(e.msg, "");
        CHECK_INT(make_file(state, "mine"), 0);
        CHECK(r == 1 || (open("/etc/passwd", O_RDONLY) < 0 && errno == EACCES));
}

static void test_without_root(void)
{
        int status = -1;
        if (geteuid() != 0)
                SKIP("needs root to become another user");
        (void)chmod(dir, 0755);
        (void)fflush(stdout);
        pid_t pid = fork();
        if (pid == 0) {
                check_failures = 0;
                as_nobody();
                (void)fflush(stdout);
                _exit(check_failures ? 1 : 0);
        }
        (void)waitpid(pid, &status, 0);
        CHECK_INT(status, 0);
}

int main(void)
{
        char path[160];
        if (!mkdtemp(dir))
                return 1;
        (void)snprintf(state, sizeof state, "%s/state", dir);
        (void)snprintf(other, sizeof other, "%s/other", dir);
        (void)snprintf(path, sizeof path, "%s/run", state);
        if (mkdir(state, 0700) < 0 || mkdir(other, 0700) < 0 || mkdir(path, 0700) < 0 || make_file(other, "secret") < 0)
                return 1;
        (void)snprintf(path, sizeof path, "%s/tool", state);
        int fd = open(path, O_CREAT | O_WRONLY, 0755);
        CHECK(write(fd, "#!/bin/sh\n", 10) == 10);
        (void)close(fd);
        RUN(test_cage);
        RUN(test_without_root);
        char rm[128];
        (void)snprintf(rm, sizeof rm, "rm -rf '%s'", dir);
        return system(rm) == 0 ? check_done() : 1;
}
