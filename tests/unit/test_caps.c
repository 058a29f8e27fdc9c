#include "os/caps.h"

#include <errno.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static uint64_t status_mask(const char *key)
{
        char line[256];
        unsigned long long v = 0;
        FILE *f = fopen("/proc/self/status", "re");
        while (f && fgets(line, sizeof line, f))
                if (strncmp(line, key, strlen(key)) == 0)
                        v = strtoull(line + strlen(key), NULL, 16);
        if (f)
                (void)fclose(f);
        return v;
}

static void test_agent_mask(void)
{
        CHECK(caps_agent_mask() == (1ull << CAP_KILL | 1ull << CAP_SETUID | 1ull << CAP_SETGID));
        CHECK(caps_effective() == status_mask("CapEff:"));
}

static void set_and_lose(void)
{
        CHECK_INT(caps_set(caps_agent_mask()), 0);
        CHECK(caps_effective() == caps_agent_mask());
        CHECK(status_mask("CapPrm:") == caps_agent_mask());
        CHECK_INT(caps_set(caps_agent_mask() | 1ull << CAP_SYS_ADMIN), -EPERM); /* gone is gone */
        CHECK_INT(caps_set(0), 0);
        CHECK(caps_effective() == 0 && status_mask("CapPrm:") == 0);
        CHECK_INT(caps_set(1ull << CAP_KILL), -EPERM);
}

static void test_set(void)
{
        if ((caps_effective() & caps_agent_mask()) != caps_agent_mask())
                SKIP("needs root");
        check_in_child(set_and_lose);
}

/* After the lock even uid 0 and an exec give nothing back. */
static void lock_and_exec(void)
{
        CHECK_INT(caps_lock(), 0);
        CHECK(status_mask("CapBnd:") == 0);
        CHECK(status_mask("CapAmb:") == 0);
        CHECK_INT(caps_set(caps_agent_mask()), 0);
        CHECK(status_mask("CapInh:") == 0);
        CHECK(prctl(PR_SET_SECUREBITS, 0, 0, 0, 0) < 0);
        CHECK(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_KILL, 0, 0) < 0);
        CHECK(prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) < 0);
        int status = -1;
        pid_t pid = fork();
        if (pid == 0) {
                (void)execl("/bin/sh", "sh", "-c",
                            "grep -q '^CapEff:.0000000000000000$' /proc/self/status && "
                            "grep -q '^CapPrm:.0000000000000000$' /proc/self/status", (char *)NULL);
                _exit(9);
        }
        (void)waitpid(pid, &status, 0);
        CHECK_INT(status, 0);
}

static void test_lock(void)
{
        if (!(caps_effective() & 1ull << CAP_SETPCAP))
                SKIP("needs root");
        check_in_child(lock_and_exec);
}

static void become_nobody(void)
{
        CHECK_INT(caps_lock(), 0);
        CHECK(setresuid(65534, 65534, 65534) == 0);
        CHECK(setuid(0) < 0);
        CHECK_INT(caps_set(0), 0);
        CHECK(caps_effective() == 0);
}

static void test_no_way_back(void)
{
        if (geteuid() != 0)
                SKIP("needs root");
        check_in_child(become_nobody);
}

int main(void)
{
        RUN(test_agent_mask);
        RUN(test_set);
        RUN(test_lock);
        RUN(test_no_way_back);
        return check_done();
}
