/* The part of `make bench` that holds the stop-watch; bench.py makes the servers, the
 * peers' bundles and the table. Everything that is compared is measured here, round robin
 * in one run and in a new order every round, so that the ratios hold whatever else the
 * machine does.
 *
 * Processes: what is spawned (the floor and the peers' programs) is vforked and exec'd from
 * this one, which reaps it; nothing is left to anybody else. Servers are only talked to.
 *
 * bench latency ROUNDS REST_MS FILE     rows of FILE (see read_rows); a line each:
 *                                       name, samples, median us, p99 us, errors
 * bench throughput PORT SECONDS CONNECTIONS exec|cycle|health|floor
 *                                       per second, median us, p99 us, errors
 * bench fill PORT FROM TO               PUTs m<FROM> .. m<TO - 1>; prints errors
 * bench drain PORT FROM TO              DELETEs them; prints errors
 * bench netns N                         holds N network namespaces from "ready" until stdin ends
 * Fields are separated by tabs. */
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "client.h"

extern char **environ;

#define EXEC_BODY       "{\"cmd\":[\"/bin/true\"]}"
#define CREATE_BODY     "{\"ttlSeconds\":3600}" /* no bench runs for an hour; nothing outlives one by much */
#define ROWS_MAX        32
#define ARGS_MAX        64
#define CONNECTIONS_MAX 256
#define SAMPLES_MAX     (1 << 17) /* of one thread; what comes after them is only counted */
#define COMPLAINTS_MAX  5
#define WARM_UP         2 /* rounds that are run and not counted */

/* --- time and numbers ------------------------------------------------------------------ */

static double now_us(void)
{
        struct timespec t;
        (void)clock_gettime(CLOCK_MONOTONIC, &t);
        return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int by_value(const void *a, const void *b)
{
        double x = *(const double *)a, y = *(const double *)b;
        return x < y ? -1 : x > y;
}

static void print_quantiles(double *v, int n, int errors)
{
        if (n)
                qsort(v, (size_t)n, sizeof *v, by_value);
        printf("%.1f\t%.1f\t%d\n", n ? v[n / 2] : 0.0, n ? v[n * 99 / 100] : 0.0, errors);
}

static void *must_alloc(size_t count, size_t size)
{
        void *p = calloc(count, size);
        if (!p) {
                perror("bench");
                exit(1);
        }
        return p;
}

/* Lets the pool fill and the previous step's remains go (namespaces die asynchronously):
 * what is measured is a server that is ready. */
static void rest(int ms)
{
        struct timespec t = { ms / 1000, ms % 1000 * 1000000L };
        (void)nanosleep(&t, NULL);
}

/* --- what is measured ------------------------------------------------------------------ */

static int null_fd;

/* 0 when it left with exit code 0. What it prints is dropped. */
static int spawn(char **argv)
{
        int status;
        pid_t pid = vfork();
        if (pid == 0) {
                (void)dup2(null_fd, 1);
                (void)dup2(null_fd, 2);
                execve(argv[0], argv, environ);
                _exit(127);
        }
        if (pid < 0)
                return -1;
        while (waitpid(pid, &status, 0) < 0)
                if (errno != EINTR)
                        return -1;
        return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -1;
}

static int floor_once(void)
{
        static char path[] = "/bin/true";
        char *argv[] = { path, NULL };
        return spawn(argv);
}

static struct client *dial(int port)
{
        struct client *c = must_alloc(1, sizeof *c);
        if (client_connect(c, port) < 0) {
                fprintf(stderr, "bench: cannot connect to port %d: %s\n", port, strerror(errno));
                exit(1);
        }
        return c;
}

/* 0 when the answer has the wanted status. Otherwise says so, and makes the connection
 * usable again: one bad answer is an error in the table, not the end of the run. */
static int call(struct client *c, int port, const char *method, const char *path, const char *body, int want)
{
        static atomic_int complaints;
        const char *answer = "";
        errno = 0;
        int status = client_call(c, method, path, body, &answer);
        if (status == want)
                return 0;
        if (atomic_fetch_add(&complaints, 1) < COMPLAINTS_MAX)
                fprintf(stderr, "bench: %s %s answered %d%s%.200s\n", method, path, status, status < 0 ? ", " : ": ",
                        status < 0 ? (errno ? strerror(errno) : "connection closed") : answer);
        if (status < 0) {
                client_close(c);
                if (client_connect(c, port) < 0) {
                        fprintf(stderr, "bench: the server on port %d is gone\n", port);
                        exit(1);
                }
        }
        return -1;
}

static int exec_true(struct client *c, int port, const char *box)
{
        char path[128];
        (void)snprintf(path, sizeof path, "%s/exec", box);
        if (call(c, port, "POST", path, EXEC_BODY, 200) < 0)
                return -1;
        return strstr(c->buf, "\"exitCode\":0") ? 0 : -1;
}

static int cycle(struct client *c, int port, const char *box)
{
        if (call(c, port, "PUT", box, CREATE_BODY, 200) < 0)
                return -1;
        int r = exec_true(c, port, box);
        return call(c, port, "DELETE", box, "", 204) < 0 ? -1 : r;
}

/* --- latency --------------------------------------------------------------------------- */

enum kind { FLOOR, HEALTH, EXEC, PUT, DEL, CYCLE, SPAWN, KIND_MAX };
static const char *const kind_names[] = { "floor", "health", "exec", "put", "delete", "cycle", "spawn" };
_Static_assert(sizeof kind_names / sizeof *kind_names == KIND_MAX, "a name for each kind");

struct row {
        enum kind kind;
        char *name;
        int port, every;
        char *argv[ARGS_MAX + 1];
        struct client *client;
        char box[64];
        double *samples;
        int count, errors;
};

static struct row rows[ROWS_MAX];
static int row_count;

static int parse_row(char *line, struct row *r)
{
        char *field[ARGS_MAX + 4], *save = NULL;
        int n = 0;
        for (char *f = strtok_r(line, "\t\n", &save); f && n < ARGS_MAX + 4; f = strtok_r(NULL, "\t\n", &save))
                field[n++] = f;
        if (n < 4)
                return -1;
        for (r->kind = 0; r->kind < KIND_MAX && strcmp(kind_names[r->kind], field[0]) != 0;)
                r->kind++;
        r->name = strdup(field[1]);
        r->port = atoi(field[2]);
        r->every = atoi(field[3]);
        for (int i = 4; i < n; i++)
                r->argv[i - 4] = strdup(field[i]);
        return r->kind == KIND_MAX || r->every < 1 || (r->kind == SPAWN && n < 5) ? -1 : 0;
}

/* kind, name, port (0: none), every (measure in each n-th round), arguments of a spawn, in
 * which @N@ stands for the number of the round. A `delete` times the deletion of what the
 * `put` in the line before it made. */
static int read_rows(const char *file)
{
        char *line = NULL;
        size_t size = 0;
        FILE *f = fopen(file, "re");
        if (!f)
                return -1;
        while (row_count < ROWS_MAX && getline(&line, &size, f) > 0)
                if (parse_row(line, &rows[row_count++]) < 0) {
                        fprintf(stderr, "bench: line %d of %s is no row\n", row_count, file);
                        return -1;
                }
        free(line);
        (void)fclose(f);
        return 0;
}

static void note(struct row *r, double begin, int result)
{
        double us = now_us() - begin;
        if (result < 0)
                r->errors++;
        else
                r->samples[r->count++] = us;
}

static void spawn_row(struct row *r, int round)
{
        char text[ARGS_MAX][256], *argv[ARGS_MAX + 1];
        int n = 0;
        for (; r->argv[n]; n++) {
                const char *mark = strstr(r->argv[n], "@N@");
                argv[n] = r->argv[n];
                if (!mark)
                        continue;
                (void)snprintf(text[n], sizeof text[n], "%.*s%d%s", (int)(mark - r->argv[n]), r->argv[n], round,
                               mark + 3);
                argv[n] = text[n];
        }
        argv[n] = NULL;
        double begin = now_us();
        note(r, begin, spawn(argv));
}

static void run_row(struct row *r, int round, int rest_ms)
{
        char box[64];
        (void)snprintf(box, sizeof box, "/v1/sandboxes/r%d-%d", (int)(r - rows), round);
        double begin = now_us();
        switch (r->kind) {
        case FLOOR: note(r, begin, floor_once()); break;
        case HEALTH: note(r, begin, call(r->client, r->port, "GET", "/healthz", "", 200)); break;
        case EXEC: note(r, begin, exec_true(r->client, r->port, r->box)); break;
        case CYCLE: note(r, begin, cycle(r->client, r->port, box)); break;
        case SPAWN: spawn_row(r, round); break;
        case PUT:
                note(r, begin, call(r->client, r->port, "PUT", box, CREATE_BODY, 200));
                rest(rest_ms);
                begin = now_us();
                note(r + 1, begin, call(r->client, r->port, "DELETE", box, "", 204));
                break;
        default: break;
        }
}

/* Another order every round: the step after a heavy one pays for its remains. */
static void shuffle(int *order, int n)
{
        static uint32_t x = 2463534242u;
        for (int i = n - 1; i > 0; i--) {
                x ^= x << 13;
                x ^= x >> 17;
                x ^= x << 5;
                int j = (int)(x % (uint32_t)(i + 1)), t = order[i];
                order[i] = order[j];
                order[j] = t;
        }
}

static int latency(int rounds, int rest_ms, const char *file)
{
        int order[ROWS_MAX], n = 0;
        if (read_rows(file) < 0)
                return 1;
        for (int i = 0; i < row_count; i++) {
                struct row *r = &rows[i];
                r->samples = must_alloc((size_t)rounds + WARM_UP, sizeof *r->samples);
                if (r->kind == DEL) {
                        if (i == 0 || rows[i - 1].kind != PUT)
                                return 2;
                        continue;
                }
                if (r->kind == PUT && (i + 1 == row_count || rows[i + 1].kind != DEL))
                        return 2;
                order[n++] = i;
                if (r->port)
                        r->client = dial(r->port);
                (void)snprintf(r->box, sizeof r->box, "/v1/sandboxes/live%d", i);
                if (r->kind == EXEC && call(r->client, r->port, "PUT", r->box, CREATE_BODY, 200) < 0)
                        return 1;
        }
        for (int round = 0; round < rounds + WARM_UP; round++) {
                for (int i = 0; round == WARM_UP && i < row_count; i++)
                        rows[i].count = 0;
                shuffle(order, n);
                for (int k = 0; k < n; k++)
                        if (round < WARM_UP || (round - WARM_UP) % rows[order[k]].every == 0) {
                                rest(rest_ms);
                                run_row(&rows[order[k]], round, rest_ms);
                        }
        }
        for (int i = 0; i < row_count; i++) {
                struct row *r = &rows[i];
                if (r->kind == EXEC)
                        (void)call(r->client, r->port, "DELETE", r->box, "", 204);
                printf("%s\t%d\t", r->name, r->count);
                print_quantiles(r->samples, r->count, r->errors);
        }
        return 0;
}

/* --- throughput ------------------------------------------------------------------------ */

enum mode { LOAD_EXEC, LOAD_CYCLE, LOAD_HEALTH, LOAD_FLOOR, LOAD_FILL, LOAD_DRAIN, LOAD_MAX };
static const char *const mode_names[] = { "exec", "cycle", "health", "floor", "fill", "drain" };
_Static_assert(sizeof mode_names / sizeof *mode_names == LOAD_MAX, "a name for each mode");

static struct {
        int port;
        enum mode mode;
        double seconds;
        atomic_int next; /* of fill and drain */
        int end;
        pthread_barrier_t barrier;
} load;

struct worker {
        pthread_t thread;
        int number, samples, errors;
        long done;
        double *sample, begin, end;
        struct client *client;
};

static int one_request(struct worker *w, const char *live)
{
        char box[64];
        switch (load.mode) {
        case LOAD_EXEC: return exec_true(w->client, load.port, live);
        case LOAD_HEALTH: return call(w->client, load.port, "GET", "/healthz", "", 200);
        case LOAD_CYCLE:
                (void)snprintf(box, sizeof box, "/v1/sandboxes/t%d-%ld", w->number, w->done + w->errors);
                return cycle(w->client, load.port, box);
        default: return floor_once();
        }
}

static void *load_worker(void *arg)
{
        struct worker *w = arg;
        char live[64];
        (void)snprintf(live, sizeof live, "/v1/sandboxes/t%d", w->number);
        if (load.mode != LOAD_FLOOR)
                w->client = dial(load.port);
        if (load.mode == LOAD_EXEC)
                w->errors += call(w->client, load.port, "PUT", live, CREATE_BODY, 200) < 0;
        (void)pthread_barrier_wait(&load.barrier);
        w->begin = w->end = now_us();
        while (w->end < w->begin + load.seconds * 1e6) {
                double begin = w->end;
                int r = one_request(w, live);
                w->end = now_us();
                w->errors += r < 0;
                w->done += r == 0;
                if (r == 0 && w->samples < SAMPLES_MAX)
                        w->sample[w->samples++] = w->end - begin;
        }
        (void)pthread_barrier_wait(&load.barrier);
        if (load.mode == LOAD_EXEC)
                w->errors += call(w->client, load.port, "DELETE", live, "", 204) < 0;
        return NULL;
}

static void *range_worker(void *arg)
{
        struct worker *w = arg;
        char box[64];
        w->client = dial(load.port);
        for (int i; (i = atomic_fetch_add(&load.next, 1)) < load.end;) {
                (void)snprintf(box, sizeof box, "/v1/sandboxes/m%d", i);
                w->errors += (load.mode == LOAD_FILL ? call(w->client, load.port, "PUT", box, CREATE_BODY, 200)
                                                     : call(w->client, load.port, "DELETE", box, "", 204)) < 0;
        }
        return NULL;
}

static struct worker *run_workers(int connections, void *(*fn)(void *))
{
        struct worker *w = must_alloc((size_t)connections, sizeof *w);
        (void)pthread_barrier_init(&load.barrier, NULL, (unsigned)connections);
        for (int i = 0; i < connections; i++) {
                w[i].number = i;
                if (fn == load_worker)
                        w[i].sample = must_alloc(SAMPLES_MAX, sizeof *w[i].sample);
                if (pthread_create(&w[i].thread, NULL, fn, &w[i]) != 0) {
                        perror("bench");
                        exit(1);
                }
        }
        for (int i = 0; i < connections; i++)
                (void)pthread_join(w[i].thread, NULL);
        return w;
}

static int throughput(int connections)
{
        struct worker *w = run_workers(connections, load_worker);
        double begin = w[0].begin, end = w[0].end;
        long done = 0;
        int n = 0, errors = 0;
        for (int i = 0; i < connections; i++) {
                begin = w[i].begin < begin ? w[i].begin : begin;
                end = w[i].end > end ? w[i].end : end;
                done += w[i].done;
                errors += w[i].errors;
                n += w[i].samples;
        }
        double *all = must_alloc((size_t)n + 1, sizeof *all);
        for (int i = 0, at = 0; i < connections; at += w[i++].samples)
                memcpy(all + at, w[i].sample, (size_t)w[i].samples * sizeof *all);
        printf("%.1f\t", (double)done / ((end - begin) / 1e6));
        print_quantiles(all, n, errors);
        return 0;
}

static int range(int from, int to)
{
        int errors = 0;
        atomic_store(&load.next, from);
        load.end = to;
        struct worker *w = run_workers(4, range_worker);
        for (int i = 0; i < 4; i++)
                errors += w[i].errors;
        printf("%d\n", errors);
        return 0;
}

/* --- bare network namespaces ------------------------------------------------------------ */

static int lo_up(void)
{
        struct ifreq r = { .ifr_name = "lo" };
        int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        if (fd < 0)
                return -1;
        r.ifr_flags = IFF_UP | IFF_RUNNING;
        int result = ioctl(fd, SIOCSIFFLAGS, &r);
        (void)close(fd);
        return result;
}

/* A descriptor holds each, so that nothing but the namespaces is weighed. lo is up, as it
 * is in a sandbox. */
static int hold_netns(int count)
{
        char c;
        for (int i = 0; i < count; i++)
                if (unshare(CLONE_NEWNET) < 0 || lo_up() < 0 || open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC) < 0) {
                        fprintf(stderr, "bench: network namespace %d: %s\n", i, strerror(errno));
                        return 1;
                }
        printf("ready\n");
        (void)fflush(stdout);
        while (read(0, &c, 1) > 0)
                ;
        return 0;
}

int main(int argc, char **argv)
{
        const char *what = argc > 1 ? argv[1] : "";
        null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
        if (argc == 5 && strcmp(what, "latency") == 0 && atoi(argv[2]) > 0)
                return latency(atoi(argv[2]), atoi(argv[3]), argv[4]);
        if (argc == 3 && strcmp(what, "netns") == 0)
                return hold_netns(atoi(argv[2]));
        load.port = argc > 2 ? atoi(argv[2]) : 0;
        if (argc == 5 && (strcmp(what, "fill") == 0 || strcmp(what, "drain") == 0)) {
                load.mode = strcmp(what, "fill") == 0 ? LOAD_FILL : LOAD_DRAIN;
                return range(atoi(argv[3]), atoi(argv[4]));
        }
        if (argc == 6 && strcmp(what, "throughput") == 0) {
                int connections = atoi(argv[4]);
                load.seconds = atof(argv[3]);
                for (load.mode = 0; load.mode < LOAD_FILL && strcmp(mode_names[load.mode], argv[5]) != 0;)
                        load.mode++;
                if (load.mode < LOAD_FILL && connections > 0 && connections <= CONNECTIONS_MAX)
                        return throughput(connections);
        }
        fprintf(stderr, "usage: bench latency ROUNDS REST_MS FILE\n"
                        "       bench throughput PORT SECONDS CONNECTIONS exec|cycle|health|floor\n"
                        "       bench fill|drain PORT FROM TO\n"
                        "       bench netns N\n");
        return 2;
}
