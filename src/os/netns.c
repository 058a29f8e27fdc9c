/* A network namespace is the dearest piece of a sandbox (0.5 ms to make, as much again of
 * kernel time to take apart), so one that its sandbox never used is given to the next.
 * Nobody inside has a capability over it (it belongs to the keeper's user namespace), so
 * addresses, routes and sysctls cannot have changed. What can be left is what packets
 * leave: TIME_WAIT sockets, metrics, counters. All of them move a counter in the files
 * below, so equal text means untouched; anything else means the namespace is thrown away. */
#include "os/netns.h"

#include <errno.h>
#include <sched.h>
#include <string.h>

#include "base/cleanup.h"
#include "os/sys.h"

static const char *const files[] = {
        "thread-self/net/dev",      /* packets over lo */
        "thread-self/net/snmp",     /* IP, ICMP, TCP, UDP: also failed attempts */
        "thread-self/net/snmp6",
        "thread-self/net/sockstat", /* sockets alive, orphaned, in TIME_WAIT */
        "thread-self/net/sockstat6",
        "thread-self/net/ip6_flowlabel", /* labels can be made to linger */
};

#define TEXT_BYTES (24 * 1024)
static char baseline[TEXT_BYTES];
static size_t baseline_len;

/* "TCP: inuse 0 orphan 1 tw 0 alloc 2 mem 201": orphan, alloc and mem count the whole
 * machine. Drops these words with their numbers, in place; returns the new length. */
static size_t cut_global(char *text)
{
        static const char *const words[] = { " orphan ", " alloc ", " mem " };
        char *out = text;
        for (const char *p = text; *p;) {
                size_t skip = 0;
                for (unsigned i = 0; i < ARRAY_SIZE(words) && !skip; i++)
                        if (strncmp(p, words[i], strlen(words[i])) == 0)
                                skip = strlen(words[i]) + strspn(p + strlen(words[i]), "0123456789");
                p += skip;
                if (!skip)
                        *out++ = *p++;
        }
        return (size_t)(out - text);
}

/* All files, one after the other. Length or -errno. */
static int read_state(int proc_fd, char *out, size_t size)
{
        size_t n = 0;
        for (unsigned i = 0; i < ARRAY_SIZE(files); i++) {
                int r = file_read(proc_fd, files[i], out + n, size - n);
                if (r == -ENOENT) /* IPv6 switched off */
                        continue;
                if (r < 0)
                        return r;
                n += strstr(files[i], "sockstat") ? cut_global(out + n) : (size_t)r;
                if (n + 1 >= size)
                        return -E2BIG;
        }
        return (int)n;
}

static int state_of(int proc_fd, int own_net_fd, int net_fd, char *out, size_t size)
{
        if (setns(net_fd, CLONE_NEWNET) < 0)
                return -errno;
        int n = read_state(proc_fd, out, size);
        /* Not being able to come back would leave the keeper in a sandbox's network. */
        if (setns(own_net_fd, CLONE_NEWNET) < 0)
                abort();
        return n;
}

int netns_baseline(int proc_fd, int own_net_fd, int net_fd)
{
        int n = state_of(proc_fd, own_net_fd, net_fd, baseline, sizeof baseline);
        baseline_len = n > 0 ? (size_t)n : 0;
        return n < 0 ? n : 0;
}

bool netns_untouched(int proc_fd, int own_net_fd, int net_fd)
{
        static char now[TEXT_BYTES];
        if (!baseline_len)
                return false;
        int n = state_of(proc_fd, own_net_fd, net_fd, now, sizeof now);
        return n > 0 && (size_t)n == baseline_len && memcmp(now, baseline, baseline_len) == 0;
}
