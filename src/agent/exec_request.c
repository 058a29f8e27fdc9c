#include "agent/exec_request.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/spawn.h"
#include "base/cleanup.h"
#include "base/limits.h"
#include "wire/frame.h"

/* What every command starts with. Nothing of the server's environment comes in. */
static const char *const base_env[] = {
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME=/workspace",
        "USER=sandbox",
        "LOGNAME=sandbox",
        "SHELL=/bin/sh",
        "LANG=C.UTF-8",
        "TERM=dumb",
};

struct vec {
        char **p;
        size_t n, cap;
};

static int vec_add(struct vec *v, char *s)
{
        if (!s)
                return -ENOMEM;
        if (v->n + 2 > v->cap) {
                size_t cap = v->cap ? v->cap * 2 : 32;
                char **p = realloc(v->p, cap * sizeof *p);
                if (!p) {
                        free(s);
                        return -ENOMEM;
                }
                v->p = p;
                v->cap = cap;
        }
        v->p[v->n++] = s;
        v->p[v->n] = NULL;
        return 0;
}

/* Same name up to '=' replaces. */
static int env_set(struct vec *v, char *entry)
{
        if (!entry)
                return -EINVAL;
        size_t key = strcspn(entry, "=") + 1;
        for (size_t i = 0; i < v->n; i++)
                if (strncmp(v->p[i], entry, key) == 0) {
                        free(v->p[i]);
                        v->p[i] = entry;
                        return 0;
                }
        return vec_add(v, entry);
}

static void vec_free(char **p)
{
        for (char **at = p; at && *at; at++)
                free(*at);
        free(p);
}

void exec_request_free(struct exec_request *q)
{
        vec_free(q->argv);
        vec_free(q->envp);
        free(q->workdir);
        *q = (struct exec_request){ 0 };
}

static int take_field(struct exec_request *q, struct vec *argv, struct vec *env, char **workdir,
                      enum field tag, struct str v)
{
        uint64_t n;
        switch (tag) {
        case FIELD_ARG:
                return memchr(v.p, 0, v.n) ? -EINVAL : vec_add(argv, str_dup_c(v));
        case FIELD_ENV:
                return env_set(env, str_dup_c(v));
        case FIELD_WORKDIR:
                free(*workdir);
                *workdir = str_dup_c(v);
                return *workdir ? 0 : -EINVAL;
        case FIELD_TIMEOUT_MS:
                return field_u64(v, &q->timeout_ms) ? 0 : -EPROTO;
        case FIELD_OUTPUT_CAP:
                if (!field_u64(v, &n))
                        return -EPROTO;
                q->output_cap = (size_t)n;
                return 0;
        default:
                return 0; /* a newer server's field: not ours to refuse */
        }
}

int exec_request_parse(struct str payload, struct exec_request *ret, struct err *e)
{
        struct exec_request q = { .timeout_ms = DEFAULT_EXEC_TIMEOUT_SECONDS * 1000,
                                  .output_cap = LIMIT_OUTPUT_BYTES };
        struct vec argv = { 0 }, env = { 0 };
        _cleanup_free_ char *workdir = NULL;
        enum field tag;
        struct str v;
        int r = 0, more;
        for (size_t i = 0; r == 0 && i < ARRAY_SIZE(base_env); i++)
                r = vec_add(&env, strdup(base_env[i]));
        while (r == 0 && (more = field_next(&payload, &tag, &v)) != 0)
                r = more < 0 ? more : take_field(&q, &argv, &env, &workdir, tag, v);
        q.argv = argv.p;
        q.envp = env.p;
        if (r == 0 && (!argv.n || q.timeout_ms == 0 || q.timeout_ms > 1ull << 42 /* 139 years: no overflow in ns */))
                r = -EINVAL;
        if (r == 0 && !(q.workdir = spawn_workdir(workdir)))
                r = -ENOMEM;
        if (r < 0) {
                exec_request_free(&q);
                return fail_user(e, r, "the exec request is malformed: %s", strerror(-r));
        }
        *ret = q;
        return 0;
}
