#include "agent/info.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "os/sys.h"

static char dir[] = "/tmp/cloche-test-info-XXXXXX";
static int dfd;

static unsigned long long value(const char *text, const char *key)
{
        char line[64];
        (void)snprintf(line, sizeof line, "%s:", key);
        const char *p = strstr(text, line);
        return p ? strtoull(p + strlen(line), NULL, 10) : ~0ull;
}

static void test_format(void)
{
        static const struct { uint64_t memory, used; unsigned long long total, left; } rows[] = {
                { 1ull << 30, 0, 1048576, 1048576 },
                { 1ull << 30, 1ull << 29, 1048576, 524288 },
                { 1ull << 30, 1ull << 30, 1048576, 0 },
                { 1ull << 30, 1ull << 31, 1048576, 0 }, /* over the limit for a moment */
                { 1ull << 46, 1024, 1ull << 36, (1ull << 36) - 1 },
        };
        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
                _cleanup_buf_ struct buf b = { 0 };
                info_format_memory(&b, rows[i].memory, rows[i].used);
                const char *text = buf_cstr(&b);
                CHECK(strncmp(text, "MemTotal: ", 10) == 0);
                CHECK_INT(value(text, "MemTotal"), rows[i].total);
                CHECK_INT(value(text, "MemFree"), rows[i].left);
                CHECK_INT(value(text, "MemAvailable"), rows[i].left);
                CHECK_INT(value(text, "SwapTotal"), 0);
                for (const char *p = text; *p; p = strchr(p, '\n') + 1) { /* "Key: … kB" on each line */
                        const char *end = strchr(p, '\n');
                        CHECK(end && strncmp(end - 3, " kB", 3) == 0 && memchr(p, ':', (size_t)(end - p)));
                }
        }
}

static void write_text(const char *name, const char *text)
{
        int fd = openat(dfd, name, O_CREAT | O_TRUNC | O_WRONLY, 0644);
        CHECK(write(fd, text, strlen(text)) == (ssize_t)strlen(text));
        (void)close(fd);
}

/* What a sandbox reads through its mount is this very file, so it is never replaced. */
static void test_refresh(void)
{
        char text[2048];
        struct stat before, after;
        write_text("meminfo", "");
        write_text("usage", "104857600\n");
        int usage = openat(dfd, "usage", O_RDONLY);
        (void)fstatat(dfd, "meminfo", &before, 0);
        info_setup(dfd, 256 << 20, usage);
        info_refresh();
        CHECK(file_read(dfd, "meminfo", text, sizeof text) > 0);
        CHECK_INT(value(text, "MemTotal"), 256 * 1024);
        CHECK_INT(value(text, "MemFree"), 156 * 1024);
        write_text("usage", "0\n");
        info_refresh();
        CHECK(file_read(dfd, "meminfo", text, sizeof text) > 0);
        CHECK_INT(value(text, "MemFree"), 256 * 1024);
        /* Another sandbox's numbers, all shorter or longer, leave nothing behind. */
        info_setup(dfd, 1ull << 46, usage);
        info_refresh();
        int longer = file_read(dfd, "meminfo", text, sizeof text);
        info_setup(dfd, 1 << 20, usage);
        info_refresh();
        int shorter = file_read(dfd, "meminfo", text, sizeof text);
        CHECK(shorter < longer);
        CHECK_INT(value(text, "MemTotal"), 1024);
        CHECK(text[shorter - 1] == '\n');
        (void)fstatat(dfd, "meminfo", &after, 0);
        CHECK(before.st_ino == after.st_ino);
        (void)close(usage);
}

static void test_without_usage(void)
{
        char text[2048];
        write_text("meminfo", "");
        info_setup(dfd, 64 << 20, -1);
        info_refresh();
        CHECK(file_read(dfd, "meminfo", text, sizeof text) > 0);
        CHECK_INT(value(text, "MemFree"), 64 * 1024);
}

static void test_cpus(void)
{
        char text[2048];
        write_text("cpuinfo", "");
        write_text("meminfo", "");
        info_setup(dfd, 1 << 20, -1);
        info_write_cpus("processor\t: 7\nmodel name\t: x\n", 3);
        CHECK(file_read(dfd, "cpuinfo", text, sizeof text) > 0);
        CHECK_STR(text, "processor\t: 0\nmodel name\t: x\n\nprocessor\t: 1\nmodel name\t: x\n\n"
                        "processor\t: 2\nmodel name\t: x\n\n");
        write_text("cpuinfo", "");
        info_write_cpus("", 1);
        CHECK(file_read(dfd, "cpuinfo", text, sizeof text) > 0);
        CHECK(strncmp(text, "processor\t: 0\n", 14) == 0);
}

int main(void)
{
        if (!mkdtemp(dir) || (dfd = open(dir, O_RDONLY | O_DIRECTORY)) < 0)
                return 1;
        RUN(test_format);
        RUN(test_refresh);
        RUN(test_without_usage);
        RUN(test_cpus);
        (void)unlinkat(dfd, "meminfo", 0);
        (void)unlinkat(dfd, "cpuinfo", 0);
        (void)unlinkat(dfd, "usage", 0);
        (void)rmdir(dir);
        return check_done();
}
