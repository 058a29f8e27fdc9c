/* Fuzzes amounts: what is read is written shortest and read back as the same number. */
#include <stdlib.h>
#include <string.h>

#include "base/limits.h"
#include "base/quantity.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool ok)
{
        if (!ok)
                abort();
}

static void check(struct str s, int (*parse)(struct str, uint64_t *, struct err *),
                  const char *(*print)(uint64_t, char *))
{
        struct err e = { 0 };
        uint64_t v = 0, again = 0;
        char text[QUANTITY_TEXT_BYTES];
        int r = parse(s, &v, &e);
        if (r < 0) {
                must(e.msg[0] && e.code == r && strlen(e.msg) < sizeof e.msg);
                for (const char *p = e.msg; *p; p++) /* a stranger's bytes do not come through */
                        must((unsigned char)*p >= 0x20 && (unsigned char)*p < 0x7f);
                return;
        }
        must(print(v, text) == text && strlen(text) < sizeof text);
        must(parse(str_c(text), &again, &e) == 0 && again == v);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        char *exact = malloc(size ? size : 1); /* reading past the end is then an error */
        must(exact != NULL);
        if (size)
                memcpy(exact, data, size);
        struct str s = { exact, size };
        check(s, quantity_cpu, quantity_cpu_text);
        check(s, quantity_bytes, quantity_bytes_text);
        char echo[ECHO_BYTES];
        must(echo_value(s, echo) == echo && strlen(echo) < sizeof echo);
        uint64_t v;
        if (quantity_memory_limit(s, &v, NULL) == 0)
                must(v >= MIN_MEMORY_BYTES && v <= MAX_MEMORY_BYTES);
        free(exact);
        return 0;
}
