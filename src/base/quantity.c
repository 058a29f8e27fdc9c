#include "base/quantity.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/limits.h"

#define ECHO_CHARS 40
#define CPU_DECIMALS 3 /* a thousandth of a core is the unit */
/* 10^15 times Pi stays far below 128 bits, and nobody writes more digits. */
#define BYTES_DECIMALS 15

static const struct {
        const char *suffix;
        uint64_t factor;
} units[] = {
        { "", 1 },
        { "k", 1000ull },
        { "K", 1000ull },
        { "M", 1000ull * 1000 },
        { "G", 1000ull * 1000 * 1000 },
        { "T", 1000ull * 1000 * 1000 * 1000 },
        { "P", 1000ull * 1000 * 1000 * 1000 * 1000 },
        { "Ki", 1ull << 10 },
        { "Mi", 1ull << 20 },
        { "Gi", 1ull << 30 },
        { "Ti", 1ull << 40 },
        { "Pi", 1ull << 50 },
};

const char *echo_value(struct str s, char out[ECHO_BYTES])
{
        size_t n = s.n < ECHO_CHARS ? s.n : ECHO_CHARS;
        for (size_t i = 0; i < n; i++)
                out[i] = s.p[i] >= ' ' && s.p[i] < 0x7f ? s.p[i] : '?';
        memcpy(out + n, s.n > n ? "..." : "", s.n > n ? 4 : 1);
        return out;
}

/* A number in parts: 1.250Gi is whole "1", fraction "250", suffix "Gi". */
struct parts {
        struct str whole, fraction, suffix;
        bool has_point;
};

static size_t count_digits(const char *p, size_t n)
{
        size_t i = 0;
        while (i < n && p[i] >= '0' && p[i] <= '9')
                i++;
        return i;
}

static bool split(struct str s, struct parts *ret)
{
        struct parts r = { 0 };
        r.whole = (struct str){ s.p, count_digits(s.p, s.n) };
        if (r.whole.n == 0)
                return false;
        size_t at = r.whole.n;
        if (at < s.n && s.p[at] == '.') {
                at++;
                r.has_point = true;
                r.fraction = (struct str){ s.p + at, count_digits(s.p + at, s.n - at) };
                if (r.fraction.n == 0)
                        return false;
                at += r.fraction.n;
        }
        r.suffix = (struct str){ s.p + at, s.n - at };
        *ret = r;
        return true;
}

static int bad_cpu(struct str s, struct err *e)
{
        char shown[ECHO_BYTES];
        return fail_user(e, -EINVAL,
                         "'%s' is not an amount of cpu; write cores, as '1', '1.5' or '0.25', "
                         "or thousandths of a core, as '500m'",
                         echo_value(s, shown));
}

static int too_large(struct str s, struct err *e)
{
        char shown[ECHO_BYTES];
        return fail_user(e, -ERANGE, "'%s' is too large a number", echo_value(s, shown));
}

int quantity_cpu(struct str s, uint64_t *ret_millis, struct err *e)
{
        struct parts p;
        uint64_t whole, fraction = 0;
        if (!split(s, &p) || p.fraction.n > CPU_DECIMALS)
                return bad_cpu(s, e);
        bool millis = str_eq(p.suffix, "m");
        if ((p.suffix.n != 0 && !millis) || (millis && p.has_point))
                return bad_cpu(s, e);
        if (!str_to_u64(p.whole, millis ? UINT64_MAX : UINT64_MAX / 1000 - 1, &whole))
                return too_large(s, e);
        if (p.has_point)
                (void)str_to_u64(p.fraction, 999, &fraction);
        for (size_t i = p.fraction.n; i < CPU_DECIMALS; i++)
                fraction *= 10;
        *ret_millis = millis ? whole : whole * 1000 + fraction;
        return 0;
}

static int bad_bytes(struct str s, const char *why, struct err *e)
{
        char shown[ECHO_BYTES];
        return fail_user(e, -EINVAL,
                         "'%s' is not an amount of bytes%s; write '1Gi', '512Mi', '1.5G' or "
                         "plain bytes, as '1048576' (units: k M G T P, Ki Mi Gi Ti Pi)",
                         echo_value(s, shown), why);
}

static uint64_t unit_factor(struct str suffix)
{
        for (size_t i = 0; i < ARRAY_SIZE(units); i++)
                if (str_eq(suffix, units[i].suffix))
                        return units[i].factor;
        return 0;
}

int quantity_bytes(struct str s, uint64_t *ret, struct err *e)
{
        struct parts p;
        uint64_t whole, fraction = 0, scale = 1;
        if (!split(s, &p) || p.fraction.n > BYTES_DECIMALS)
                return bad_bytes(s, "", e);
        uint64_t factor = unit_factor(p.suffix);
        if (factor == 0)
                return bad_bytes(s, "", e);
        if (!str_to_u64(p.whole, UINT64_MAX, &whole))
                return too_large(s, e);
        if (p.has_point)
                (void)str_to_u64(p.fraction, UINT64_MAX, &fraction);
        for (size_t i = 0; i < p.fraction.n; i++)
                scale *= 10;

        unsigned __int128 part = (unsigned __int128)fraction * factor;
        if (part % scale != 0)
                return bad_bytes(s, " (it is no whole number of them)", e);
        unsigned __int128 all = (unsigned __int128)whole * factor + part / scale;
        if (all > UINT64_MAX)
                return too_large(s, e);
        *ret = (uint64_t)all;
        return 0;
}

const char *quantity_cpu_text(uint64_t millis, char out[QUANTITY_TEXT_BYTES])
{
        unsigned long long v = millis;
        if (v % 1000 == 0)
                (void)snprintf(out, QUANTITY_TEXT_BYTES, "%llu", v / 1000);
        else if (v > 1000 && v % 100 == 0)
                (void)snprintf(out, QUANTITY_TEXT_BYTES, "%llu.%llu", v / 1000, v % 1000 / 100);
        else
                (void)snprintf(out, QUANTITY_TEXT_BYTES, "%llum", v);
        return out;
}

const char *quantity_bytes_text(uint64_t bytes, char out[QUANTITY_TEXT_BYTES])
{
        /* The largest unit that divides it. */
        size_t best = 0;
        for (size_t i = 1; bytes && i < ARRAY_SIZE(units); i++)
                if (bytes % units[i].factor == 0 && units[i].factor > units[best].factor)
                        best = i;
        (void)snprintf(out, QUANTITY_TEXT_BYTES, "%llu%s",
                       (unsigned long long)(bytes / units[best].factor), units[best].suffix);
        return out;
}

int quantity_cpu_limit(struct str s, uint64_t *ret_millis, struct err *e)
{
        uint64_t v;
        int r = quantity_cpu(s, &v, e);
        if (r < 0)
                return r;
        if (v < MIN_CPU_MILLIS || v > MAX_CPU_MILLIS) {
                char shown[ECHO_BYTES], least[QUANTITY_TEXT_BYTES], most[QUANTITY_TEXT_BYTES];
                return fail_user(e, -ERANGE,
                                 "'%s' is out of range for cpu: from '%s' to '%s' cores are possible",
                                 echo_value(s, shown), quantity_cpu_text(MIN_CPU_MILLIS, least),
                                 quantity_cpu_text(MAX_CPU_MILLIS, most));
        }
        *ret_millis = v;
        return 0;
}

static int bytes_limit(struct str s, const char *what, uint64_t min, uint64_t max,
                       uint64_t *ret, struct err *e)
{
        uint64_t v;
        int r = quantity_bytes(s, &v, e);
        if (r < 0)
                return r;
        if (v < min || v > max) {
                char shown[ECHO_BYTES], least[QUANTITY_TEXT_BYTES], most[QUANTITY_TEXT_BYTES];
                return fail_user(e, -ERANGE,
                                 "'%s' is out of range for %s: from '%s' to '%s' are possible",
                                 echo_value(s, shown), what, quantity_bytes_text(min, least),
                                 quantity_bytes_text(max, most));
        }
        *ret = v;
        return 0;
}

int quantity_memory_limit(struct str s, uint64_t *ret, struct err *e)
{
        return bytes_limit(s, "memory", MIN_MEMORY_BYTES, MAX_MEMORY_BYTES, ret, e);
}

int quantity_storage_limit(struct str s, uint64_t *ret, struct err *e)
{
        return bytes_limit(s, "storage", MIN_STORAGE_BYTES, MAX_STORAGE_BYTES, ret, e);
}
