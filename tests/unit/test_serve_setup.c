#include "cli/serve_setup.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "os/sys.h"

static char top[] = "/tmp/cloche-test-setup-XXXXXX";

static struct config config_for(char *state_dir, char *listen_on)
{
        return (struct config){ .state_dir = state_dir, .listen = listen_on };
}

static void test_state(void)
{
        char dir[128], path[160];
        struct setup s;
        struct err e = { 0 };
        struct stat st;
        (void)snprintf(dir, sizeof dir, "%s/deep/er/state", top);
        struct config c = config_for(dir, NULL);
        CHECK_INT(setup_state(&s, &c, &e), 0);
        static const char *const made[] = { "", "/run", "/stage" };
        for (unsigned i = 0; i < 3; i++) {
                (void)snprintf(path, sizeof path, "%s%s", dir, made[i]);
                CHECK(stat(path, &st) == 0 && S_ISDIR(st.st_mode) && (st.st_mode & 0777) == 0700); /* ours alone */
        }
        (void)snprintf(path, sizeof path, "%s/lock", dir);
        CHECK(stat(path, &st) == 0 && (st.st_mode & 0777) == 0600);
        (void)snprintf(path, sizeof path, "%s/run", dir);
        CHECK_STR(s.run_dir, path);
        CHECK(s.lock_fd >= 0 && (fcntl(s.lock_fd, F_GETFD) & FD_CLOEXEC));
        setup_free(&s);
        CHECK_INT(setup_state(&s, &c, &e), 0); /* all is there already: fine */
        setup_free(&s);
}

static void put_file(const char *path, const char *text)
{
        FILE *f = fopen(path, "w");
        CHECK(f && fputs(text, f) >= 0 && fclose(f) == 0);
}

/* A store that was never synced is not to be trusted after a crash of the machine. */
static void test_store_of_an_earlier_boot(void)
{
        char dir[128], boot[160], db[160], wal[160], was[64] = "", now[64] = "";
        struct setup s;
        struct err e = { 0 };
        (void)snprintf(dir, sizeof dir, "%s/booted", top);
        (void)snprintf(boot, sizeof boot, "%s/boot", dir);
        (void)snprintf(db, sizeof db, "%s/store.db", dir);
        (void)snprintf(wal, sizeof wal, "%s/store.db-wal", dir);
        struct config c = config_for(dir, NULL);
        CHECK_INT(setup_state(&s, &c, &e), 0);
        setup_free(&s);
        if (access("/proc/sys/kernel/random/boot_id", R_OK) < 0)
                SKIP("this kernel tells no boot apart");
        CHECK(file_read(AT_FDCWD, boot, was, sizeof was) > 0);
        put_file(db, "rows");
        put_file(wal, "more");
        CHECK_INT(setup_state(&s, &c, &e), 0); /* the same boot: they are what lives */
        setup_free(&s);
        CHECK(access(db, F_OK) == 0 && access(wal, F_OK) == 0);
        put_file(boot, "an earlier one\n");
        CHECK_INT(setup_state(&s, &c, &e), 0);
        setup_free(&s);
        CHECK(access(db, F_OK) < 0 && access(wal, F_OK) < 0);
        CHECK(file_read(AT_FDCWD, boot, now, sizeof now) > 0 && strcmp(was, now) == 0);
        put_file(db, "rows");
        CHECK_INT(unlink(boot), 0); /* never noted: nothing is known against it */
        CHECK_INT(setup_state(&s, &c, &e), 0);
        setup_free(&s);
        CHECK(access(db, F_OK) == 0 && access(boot, F_OK) == 0);
}

static void test_lock(void)
{
        char dir[128];
        struct setup a, b;
        struct err e = { 0 };
        (void)snprintf(dir, sizeof dir, "%s/state", top);
        struct config c = config_for(dir, NULL);
        CHECK_INT(setup_state(&a, &c, &e), 0);
        CHECK_INT(setup_state(&b, &c, &e), -EBUSY);
        CHECK_INT(e.blame, ERR_USER);
        CHECK(strstr(e.msg, "another cloche serves from") && strstr(e.msg, dir));
        setup_free(&b);
        setup_free(&a);
        CHECK_INT(setup_state(&b, &c, &e), 0); /* free again */
        setup_free(&b);
        /* one that died without a word holds nothing */
        pid_t pid = fork();
        if (pid == 0) {
                struct setup d;
                _exit(setup_state(&d, &c, &e) == 0 ? 0 : 1);
        }
        int status = -1;
        (void)waitpid(pid, &status, 0);
        CHECK_INT(status, 0);
        CHECK_INT(setup_state(&b, &c, &e), 0);
        setup_free(&b);
}

static void test_bad_directories(void)
{
        char file[128], below[160], longest[5000];
        struct setup s;
        struct err e = { 0 };
        (void)snprintf(file, sizeof file, "%s/file", top);
        (void)close(open(file, O_CREAT | O_WRONLY, 0600));
        (void)snprintf(below, sizeof below, "%s/state", file);
        struct config c = config_for(below, NULL);
        CHECK_INT(setup_state(&s, &c, &e), -ENOTDIR);
        CHECK(strstr(e.msg, below) != NULL);
        setup_free(&s);
        memset(longest, 'x', sizeof longest);
        longest[0] = '/';
        longest[sizeof longest - 1] = '\0';
        c.state_dir = longest;
        CHECK_INT(setup_state(&s, &c, &e), -ENAMETOOLONG);
        setup_free(&s);
}

static bool connects(int family, const void *a, socklen_t n)
{
        int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        bool ok = connect(fd, a, n) == 0;
        (void)close(fd);
        return ok;
}

static void test_listen_tcp(void)
{
        char where[64], any[] = "127.0.0.1:0", taken[32], bad[] = "127.0.0.1:notaport";
        struct err e = { 0 };
        struct config c = config_for(NULL, any);
        int fd = setup_listen(&c, &e);
        CHECK(fd >= 0);
        struct sockaddr_in a;
        socklen_t n = sizeof a;
        if (fd < 0 || getsockname(fd, (struct sockaddr *)&a, &n) < 0)
                SKIP("port 0 is not allowed");
        CHECK(a.sin_addr.s_addr == htonl(INADDR_LOOPBACK));
        CHECK(connects(AF_INET, &a, n));
        CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC);
        CHECK(fcntl(fd, F_GETFL) & O_NONBLOCK);
        (void)snprintf(taken, sizeof taken, "127.0.0.1:%u", ntohs(a.sin_port));
        setup_where(&c, fd, where, sizeof where); /* 0 would tell nobody anything */
        CHECK(strncmp(where, "http://", 7) == 0);
        CHECK_STR(where + 7, taken);
        c.listen = taken;
        CHECK_INT(setup_listen(&c, &e), -EADDRINUSE);
        CHECK(strstr(e.msg, taken) != NULL);
        c.listen = bad;
        CHECK(setup_listen(&c, &e) < 0);
        (void)close(fd);
}

static void test_listen_unix(void)
{
        char where[128];
        struct err e = { 0 };
        struct stat st;
        struct sockaddr_un a = { .sun_family = AF_UNIX };
        (void)snprintf(where, sizeof where, "unix:%s/l.sock", top);
        (void)snprintf(a.sun_path, sizeof a.sun_path, "%s/l.sock", top);
        struct config c = config_for(NULL, where);
        mode_t before = umask(022);
        int fd = setup_listen(&c, &e);
        CHECK_INT(umask(before), 022); /* left as it was */
        CHECK(fd >= 0);
        CHECK(stat(where + 5, &st) == 0 && S_ISSOCK(st.st_mode) && (st.st_mode & 077) == 0);
        CHECK(connects(AF_UNIX, &a, sizeof a));
        (void)close(fd);
        CHECK(!connects(AF_UNIX, &a, sizeof a));
        fd = setup_listen(&c, &e); /* what a server that died left behind is in nobody's way */
        CHECK(fd >= 0 && connects(AF_UNIX, &a, sizeof a));
        CHECK_INT(setup_listen(&c, &e), -EADDRINUSE); /* one that lives keeps its socket */
        CHECK(strstr(e.msg, where) != NULL);
        CHECK(connects(AF_UNIX, &a, sizeof a));
        (void)close(fd);
        (void)unlink(where + 5);
}

/* A slip of the finger must not cost a file. */
static void test_bug_listen_removes_files(void)
{
        char where[128];
        struct err e = { 0 };
        (void)snprintf(where, sizeof where, "unix:%s/precious", top);
        (void)close(open(where + 5, O_CREAT | O_WRONLY, 0600));
        struct config c = config_for(NULL, where);
        CHECK_INT(setup_listen(&c, &e), -EADDRINUSE);
        struct stat st;
        CHECK(stat(where + 5, &st) == 0 && S_ISREG(st.st_mode));
}

static void test_image_index(void)
{
        char host[] = "host", other[] = "other";
        static struct setup s;
        s.images[0].name = host;
        s.images[1].name = other;
        s.image_count = 2;
        CHECK_INT(setup_image_index(&s, "host"), 0);
        CHECK_INT(setup_image_index(&s, "other"), 1);
        CHECK_INT(setup_image_index(&s, "others"), -ENOENT);
        CHECK_INT(setup_image_index(&s, ""), -ENOENT);
}

int main(void)
{
        char rm[128];
        if (!mkdtemp(top))
                return 1;
        RUN(test_state);
        RUN(test_store_of_an_earlier_boot);
        RUN(test_lock);
        RUN(test_bad_directories);
        RUN(test_listen_tcp);
        RUN(test_listen_unix);
        RUN(test_bug_listen_removes_files);
        RUN(test_image_index);
        (void)snprintf(rm, sizeof rm, "rm -rf '%s'", top);
        return system(rm) == 0 ? check_done() : 1;
}
