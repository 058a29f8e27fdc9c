#include "agent/info.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct {
        int dir, file, usage;
        uint64_t memory, last_used;
        size_t last_len;
} info = { .dir = -1, .file = -1, .usage = -1 };

void info_setup(int info_fd, uint64_t memory, int usage_fd)
{
        info.dir = info_fd;
        info.memory = memory;
        info.usage = usage_fd;
        info.file = openat(info_fd, "meminfo", O_WRONLY | O_CLOEXEC);
        info.last_used = UINT64_MAX;
}

/* The lines that free, top and language runtimes read, in the kernel's order and format. */
void info_format_memory(struct buf *out, uint64_t memory, uint64_t used)
{
        unsigned long long total = memory / 1024, in_use = used / 1024;
        unsigned long long left = in_use < total ? total - in_use : 0;
        static const char *const zero[] = {
                "Buffers:       ", "Cached:        ", "SwapCached:    ", "Active:        ",
                "Inactive:      ", "SwapTotal:     ", "SwapFree:      ", "Dirty:         ",
                "Writeback:     ", "Shmem:         ", "SReclaimable:  ",
        };
        buf_addf(out, "MemTotal:       %8llu kB\nMemFree:        %8llu kB\nMemAvailable:   %8llu kB\n",
                 total, left, left);
        for (size_t i = 0; i < ARRAY_SIZE(zero); i++)
                buf_addf(out, "%s %8d kB\n", zero[i], 0);
        buf_addf(out, "AnonPages:      %8llu kB\n", in_use);
}

void info_refresh(void)
{
        char text[32];
        uint64_t used = 0;
        ssize_t n = info.usage >= 0 ? pread(info.usage, text, sizeof text - 1, 0) : 0;
        if (n > 0) {
                text[n] = '\0';
                used = strtoull(text, NULL, 10);
        }
        if (info.file < 0 || used == info.last_used)
                return;
        _cleanup_buf_ struct buf b = { 0 };
        info_format_memory(&b, info.memory, used);
        if (!buf_ok(&b) || pwrite(info.file, b.data, b.len, 0) != (ssize_t)b.len)
                return;
        if (b.len < info.last_len)
                (void)!ftruncate(info.file, (off_t)b.len);
        info.last_len = b.len;
        info.last_used = used;
}

void info_write_cpus(const char *block, unsigned cpus)
{
        int fd = openat(info.dir, "cpuinfo", O_WRONLY | O_CLOEXEC);
        if (fd < 0)
                return;
        const char *rest = strchr(block, '\n'); /* the first line is "processor : 0" */
        _cleanup_buf_ struct buf b = { 0 };
        for (unsigned i = 0; i < cpus; i++)
                buf_addf(&b, "processor\t: %u%s\n", i, rest ? rest : "\n");
        if (buf_ok(&b))
                (void)!write(fd, b.data, b.len);
        (void)close(fd);
}
