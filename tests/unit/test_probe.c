#include "os/probe.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "os/probe_internal.h"
#include "os/sys.h"

static const struct probe_result *find(const struct probe_report *r, const char *name)
{
        for (size_t i = 0; i < r->count; i++)
                if (strcmp(r->results[i].name, name) == 0)
                        return &r->results[i];
        printf("no probe '%s'\n", name);
        abort();
}

static int returns_minus_seven(void *arg)
{
        (void)arg;
        return -7;
}

static int dies(void *arg)
{
        (void)arg;
        (void)raise(SIGKILL);
        return 0;
}

static int hangs(void *arg)
{
        (void)arg;
        (void)alarm(1); /* sooner than the ten seconds that probe_child gives */
        (void)pause();
        return 0;
}

static void test_child(void)
{
        CHECK_INT(probe_child(returns_minus_seven, NULL), -7);
        CHECK_INT(probe_child(dies, NULL), -EIO);
        CHECK_INT(probe_child(hangs, NULL), -ETIMEDOUT);
        CHECK(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD); /* all reaped */
}

static void test_texts(void)
{
        struct probe_result r = { 0 };
        probe_bad(&r, PROBE_WEAK, "it is %s\ndo that", "old");
        CHECK_STR(r.detail, "it is old");
        CHECK_STR(r.remedy, "do that");
        probe_ok(&r, "fine");
        CHECK_STR(r.detail, "fine");
        CHECK_STR(r.remedy, "");
        CHECK_INT(r.status, PROBE_OK);
}

static void test_every_finding_is_whole(void)
{
        struct probe_report r;
        bool missing = false;
        probe_all("/tmp", &r);
        CHECK(r.count >= 15);
        for (size_t i = 0; i < r.count; i++) {
                const struct probe_result *p = &r.results[i];
                CHECK(p->name && p->detail[0]);
                CHECK(p->status < PROBE_STATUS_MAX);
                if ((p->status == PROBE_OK) != (p->remedy[0] == '\0'))
                        printf("%s: %d '%s'\n", p->name, p->status, p->remedy);
                CHECK((p->status == PROBE_OK) == (p->remedy[0] == '\0'));
                CHECK(!strchr(p->detail, '\n') && !strchr(p->remedy, '\n'));
                missing = missing || (p->essential && p->status == PROBE_MISSING);
        }
        CHECK_INT(r.can_serve, !missing);
}

static void test_state_dir(void)
{
        struct probe_report r;
        char dir[] = "/tmp/cloche-test-probe-XXXXXX", below[64];
        CHECK(mkdtemp(dir));
        (void)snprintf(below, sizeof below, "%s/not/yet", dir);
        probe_all(below, &r);
        CHECK_INT(find(&r, "state directory")->status, PROBE_OK);
        CHECK(strstr(find(&r, "state directory")->detail, "can be made"));
        CHECK_INT(rmdir(dir), 0); /* nothing was left in it */
        probe_all("/proc/nowhere", &r);
        CHECK_INT(find(&r, "state directory")->status, PROBE_MISSING);
        CHECK(!r.can_serve);
        probe_all("/etc/passwd", &r); /* a file */
        CHECK_INT(find(&r, "state directory")->status, PROBE_MISSING);
}

static void test_summary(void)
{
        struct probe_report r = { .count = 3 };
        r.results[0] = (struct probe_result){ .name = "a", .status = PROBE_OK };
        r.results[1] = (struct probe_result){ .name = "b", .status = PROBE_WEAK, .detail = "small; so it is slow" };
        r.results[2] = (struct probe_result){ .name = "c", .status = PROBE_MISSING, .detail = "not there" };
        char *text = probe_summary(&r);
        CHECK_STR(text, "b weak: small; c missing: not there");
        free(text);
        r.count = 1;
        text = probe_summary(&r);
        CHECK_STR(text, "");
        free(text);
}

static int count_entries(const char *path, const char *part)
{
        DIR *d = opendir(path);
        int n = 0;
        if (!d)
                return 0;
        for (const struct dirent *de; (de = readdir(d));)
                n += strstr(de->d_name, part) != NULL;
        (void)closedir(d);
        return n;
}

static int count_fds(void)
{
        DIR *d = opendir("/proc/self/fd");
        int n = 0;
        while (readdir(d))
                n++;
        (void)closedir(d);
        return n;
}

/* In a mount namespace of our own, where nobody else's mounts come and go. */
static int mounts_remain(void *arg)
{
        static char before[1 << 18], after[1 << 18];
        struct probe_report r;
        (void)arg;
        int x = probe_enter_private(geteuid() == 0);
        if (x < 0)
                return x;
        if (file_read(AT_FDCWD, "/proc/self/mountinfo", before, sizeof before) <= 0)
                return -EIO;
        probe_all("/tmp", &r);
        if (file_read(AT_FDCWD, "/proc/self/mountinfo", after, sizeof after) <= 0)
                return -EIO;
        return strcmp(before, after) == 0 ? 0 : -1000;
}

static void test_nothing_remains(void)
{
        static const char *const places[] = { "/sys/fs/cgroup", "/sys/fs/cgroup/memory",
                                              "/sys/fs/cgroup/pids", "/sys/fs/cgroup/cpu",
                                              "/sys/fs/cgroup/unified" };
        struct probe_report r;
        int fds = count_fds();
        probe_all("/tmp", &r);
        CHECK_INT(count_fds(), fds);
        char mine[48];
        (void)snprintf(mine, sizeof mine, "cloche-check-%d", (int)getpid());
        for (size_t i = 0; i < sizeof places / sizeof *places; i++)
                CHECK_INT(count_entries(places[i], mine), 0);
        CHECK(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD);
        int x = probe_child(mounts_remain, NULL);
        if (x < 0 && x != -1000)
                SKIP("no mount namespace to look at");
        CHECK_INT(x, 0);
}

/* As an ordinary user: what only root has is found to be weak or missing. */
static int as_nobody(void *arg)
{
        (void)arg;
        struct probe_report r;
        if (setresgid(65534, 65534, 65534) < 0 || setresuid(65534, 65534, 65534) < 0)
                return -errno;
        probe_all("/root/cloche", &r);
        if (find(&r, "user")->status != PROBE_WEAK)
                return -1;
        if (find(&r, "idmapped mounts")->status != PROBE_WEAK)
                return -2;
        if (find(&r, "state directory")->status != PROBE_MISSING || r.can_serve)
                return -3;
        if (find(&r, "cgroup memory")->status == PROBE_OK && access("/sys/fs/cgroup", W_OK) < 0)
                return -4;
        return 0;
}

static void test_unprivileged(void)
{
        if (geteuid() != 0)
                SKIP("needs root to become somebody else");
        CHECK_INT(probe_child(as_nobody, NULL), 0);
}

/* Where user namespaces are used up, the probe must say so and not only repeat a sysctl. */
static int without_userns(void *arg)
{
        (void)arg;
        struct probe_report r;
        int x = probe_enter_userns();
        if (x == 0)
                x = file_write(AT_FDCWD, "/proc/sys/user/max_user_namespaces", "0");
        if (x < 0)
                return x;
        probe_all("/tmp", &r);
        const struct probe_result *p = find(&r, "user namespaces");
        if (p->status != PROBE_MISSING || r.can_serve)
                return -1000;
        return strstr(p->detail, "max_user_namespaces=0") ? 0 : -1001;
}

static void test_user_namespaces_used_up(void)
{
        int x = probe_child(without_userns, NULL);
        if (x < 0 && x > -1000)
                SKIP("cannot limit user namespaces in one of our own");
        CHECK_INT(x, 0);
}

int main(void)
{
        RUN(test_child);
        RUN(test_texts);
        RUN(test_every_finding_is_whole);
        RUN(test_state_dir);
        RUN(test_summary);
        RUN(test_nothing_remains);
        RUN(test_unprivileged);
        RUN(test_user_namespaces_used_up);
        return check_done();
}
