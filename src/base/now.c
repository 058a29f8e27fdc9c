#include "base/now.h"

#include <stdio.h>
#include <time.h>

uint64_t now_ns(void)
{
        struct timespec t;
        (void)clock_gettime(CLOCK_MONOTONIC, &t);
        return (uint64_t)t.tv_sec * NS_PER_SEC + (uint64_t)t.tv_nsec;
}

int64_t now_wall_ms(void)
{
        struct timespec t;
        (void)clock_gettime(CLOCK_REALTIME, &t);
        return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void format(int64_t wall_ms, int with_ms, char *out, size_t size)
{
        time_t s = (time_t)(wall_ms / 1000);
        struct tm tm;
        if (!gmtime_r(&s, &tm)) {
                (void)snprintf(out, size, "9999-12-31T23:59:59Z");
                return;
        }
        char frac[8] = "";
        if (with_ms)
                (void)snprintf(frac, sizeof frac, ".%03u", (unsigned)(wall_ms % 1000) % 1000);
        (void)snprintf(out, size, "%04d-%02d-%02dT%02d:%02d:%02d%sZ", tm.tm_year + 1900,
                       tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec, frac);
}

void format_utc(int64_t wall_ms, char *out, size_t size)
{
        format(wall_ms, 0, out, size);
}

void format_utc_ms(int64_t wall_ms, char *out, size_t size)
{
        format(wall_ms, 1, out, size);
}
