/* A unit test is a program: main() calls TEST functions through RUN and returns
 * check_done(). It prints one line for each failed check and a closing
 * "N passed, N failed". A test that cannot run here calls SKIP with the reason. */
#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int check_failures, check_passed, check_failed, check_skipped;

#define CHECK(cond)                                                                      \
        do {                                                                             \
                if (!(cond)) {                                                           \
                        printf("%s:%d: failed: %s\n", __FILE__, __LINE__, #cond);        \
                        check_failures++;                                                \
                }                                                                        \
        } while (0)

#define CHECK_INT(a, b)                                                                  \
        do {                                                                             \
                long long a_ = (long long)(a), b_ = (long long)(b);                      \
                if (a_ != b_) {                                                          \
                        printf("%s:%d: failed: %s is %lld, not %lld\n", __FILE__,        \
                               __LINE__, #a, a_, b_);                                    \
                        check_failures++;                                                \
                }                                                                        \
        } while (0)

#define CHECK_STR(a, b)                                                                  \
        do {                                                                             \
                const char *a_ = (a), *b_ = (b);                                         \
                if (!a_ || !b_ || strcmp(a_, b_) != 0) {                                 \
                        printf("%s:%d: failed: %s is \"%s\", not \"%s\"\n", __FILE__,    \
                               __LINE__, #a, a_ ? a_ : "(null)", b_ ? b_ : "(null)");    \
                        check_failures++;                                                \
                }                                                                        \
        } while (0)

#define RUN(fn)                                                                          \
        do {                                                                             \
                int before_ = check_failures, skipped_ = check_skipped;                  \
                fn();                                                                    \
                if (check_failures != before_) {                                         \
                        printf("FAIL %s\n", #fn);                                        \
                        check_failed++;                                                  \
                } else if (check_skipped == skipped_)                                    \
                        check_passed++;                                                  \
        } while (0)

#define SKIP(why)                                                                        \
        do {                                                                             \
                printf("SKIP %s: %s\n", __func__, why);                                  \
                check_skipped++;                                                         \
                return;                                                                  \
        } while (0)

/* fn's checks run in a child, which may lose what it likes: capabilities, its root, its rank. */
static inline void check_in_child(void (*fn)(void))
{
        int status = -1;
        (void)fflush(stdout);
        pid_t pid = fork();
        if (pid == 0) {
                check_failures = 0;
                fn();
                (void)fflush(stdout);
                _exit(check_failures ? 1 : 0);
        }
        (void)waitpid(pid, &status, 0);
        CHECK_INT(status, 0);
}

static inline int check_done(void)
{
        printf("%d passed, %d failed, %d skipped\n", check_passed, check_failed, check_skipped);
        return check_failed ? 1 : 0;
}
