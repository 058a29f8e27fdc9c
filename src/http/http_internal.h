/* What the files of the HTTP server share. Nothing outside src/http includes this,
 * except its own tests and fuzz target.
 *
 * How the pieces hang together:
 *   server.c    listeners, the one coarse timer, deferred work, drain and close
 *   connection.c one connection's state machine: who may take the next bytes
 *   output.c    the write queue of a connection and how it ends (flush, linger, cut)
 *   head.c      bytes to a validated head; knows no connection
 *   chunk.c     the chunked body coding; knows no connection
 *   body.c      body bytes to the handler, with limits and back pressure
 *   request.c   the request object, its arena and its readers
 *   response.c  answers
 *
 * Lifetimes. A connection is freed only in its close callback, so code that ran a
 * handler may go on using it; a request is freed inside http_reply/http_end/http_abort
 * or when the client is gone, so code that ran a handler must not touch the request
 * again. Bytes are taken only in http_conn_feed() and http_conn_run(); everything else
 * that makes progress possible asks for a turn with http_conn_kick(), so that a handler
 * is never entered from inside its own calls. */
#pragma once

#include <sys/queue.h>

#include "http/http.h"

#define HTTP_READ_BYTES (128 * 1024)        /* one read, into a buffer of the server's */
#define HTTP_AHEAD_BYTES (16 * 1024)        /* read past a request in work, to notice its client leave */
#define HTTP_BURST 32                       /* pipelined requests of one connection in one turn */
#define HTTP_LINGER_BYTES (1024ull << 20) /* read and dropped so that a refused client sees why */
#define HTTP_LINGER_MS 10000
#define HTTP_REJECTS 64                     /* connections above the limit that get their 503 */
#define HTTP_CHUNK_EXTRA_BYTES (16 * 1024)  /* extensions and trailers of one body, together */
#define HTTP_ID_BYTES 128                   /* longest X-Request-ID that is taken over */
#define HTTP_TICK_MAX_MS 1000
#define HTTP_TICK_MIN_MS 10
#define HTTP_ARENA_BYTES 2048               /* inline: the head of a common request, its fields */

/* --- head.c -------------------------------------------------------------------- */
struct http_field {
        struct str name, value;
};

/* Why a message is refused: the status and the sentence for a person. */
struct http_refusal {
        int status;
        const char *sentence;
};

/* How far the collected bytes have been looked at. All zero: nothing yet. */
struct http_scan {
        size_t at;
        size_t line;    /* where the current line starts */
        unsigned lines; /* complete ones, the request line included */
};

struct http_head {
        struct str method, path, query;
        enum http_method method_id;
        bool http_1_0, keep_alive, chunked, expect_continue;
        int64_t content_length; /* -1 when chunked, 0 when none was given */
        struct http_field *fields;
        unsigned field_count;
};

/* Looks at the bytes that came since the last call; p is the head from its first byte.
 * 1: the head is complete and *ret_n bytes long. 0: more is needed. -1: refuse. */
int http_head_scan(struct http_scan *s, const char *p, size_t n, const struct http_limits *l,
                   size_t *ret_n, struct http_refusal *ret_why);
/* Understands a complete head that http_head_scan() let pass. fields has room for
 * s->lines of them. 0, or -1: refuse. All strings point into p. */
int http_head_parse(const char *p, size_t n, struct http_field *fields, unsigned max_fields,
                    struct http_head *ret, struct http_refusal *ret_why);
bool http_is_token(struct str s);
extern const char *const http_method_names[HTTP_M_MAX];

/* --- chunk.c ------------------------------------------------------------------- */
enum http_chunk_state {
        HTTP_CHUNK_SIZE,
        HTTP_CHUNK_EXTENSION,
        HTTP_CHUNK_SIZE_LF,
        HTTP_CHUNK_DATA,
        HTTP_CHUNK_DATA_CR,
        HTTP_CHUNK_DATA_LF,
        HTTP_CHUNK_TRAILER,    /* at the start of a line */
        HTTP_CHUNK_TRAILER_IN, /* inside a line */
        HTTP_CHUNK_TRAILER_LF,
        HTTP_CHUNK_LAST_LF,
        HTTP_CHUNK_DONE,
        HTTP_CHUNK_STATE_MAX
};

struct http_chunk {
        enum http_chunk_state state;
        unsigned digits;
        size_t extra; /* bytes of extensions and trailers so far */
        uint64_t left;
};

/* Takes bytes up to and including one piece of data, or up to the end of the body or of
 * p. Returns how many were taken; *ret_data is the piece, in p. -1: malformed. */
ssize_t http_chunk_take(struct http_chunk *k, const char *p, size_t n, struct str *ret_data);

/* --- the objects ----------------------------------------------------------------- */
struct http_conn;

struct http_block {
        struct http_block *next;
};

enum http_body_mode { HTTP_BODY_UNASKED, HTTP_BODY_COLLECT, HTTP_BODY_STREAM };

struct http_req {
        struct http_conn *conn;
        struct http_head head;
        struct buf head_bytes; /* owns the head when it did not come in one read */
        void *user;
        uint64_t begun_ns;
        char id[HTTP_ID_BYTES + 1];

        enum http_body_mode mode;
        struct buf body; /* collected */
        uint64_t body_max, body_seen;
        void (*on_body)(struct http_req *req, struct str body, void *user);
        void (*on_piece)(struct http_req *req, const char *p, size_t n, void *user);
        void (*on_gone)(struct http_req *req, void *user);
        void (*on_drain)(struct http_req *req, void *user);

        struct buf extra; /* header lines the handler added */
        int status;       /* of the answer, 0 before */
        uint64_t sent;    /* bytes of the answer's body */
        bool paused;
        bool body_told; /* the handler has had the end of the body */
        bool too_large; /* to be refused with 413 at the next turn */
        bool started, chunked_answer, bodiless;
        bool over; /* answered or gone: every call on it does nothing */

        struct http_block *blocks;
        size_t arena_used;
        _Alignas(16) char arena[HTTP_ARENA_BYTES];
};

enum http_conn_state {
        HTTP_CONN_HEAD,    /* idle, or collecting a head */
        HTTP_CONN_WORK,    /* req is set: its body comes, or its answer is awaited */
        HTTP_CONN_DROP,    /* answered; what is left of the body is read and dropped */
        HTTP_CONN_CLOSING, /* no more requests; waits until its bytes are out */
        HTTP_CONN_LINGER,  /* write side shut; reads until the client has closed */
        HTTP_CONN_DEAD,    /* uv_close() called */
        HTTP_CONN_STATE_MAX
};

struct http_conn {
        union {
                uv_handle_t handle;
                uv_stream_t stream;
                uv_tcp_t tcp;
                uv_pipe_t pipe;
        } uv;
        uv_write_t write;
        uv_shutdown_t shutdown;
        struct http_server *server;
        TAILQ_ENTRY(http_conn) link;
        TAILQ_ENTRY(http_conn) deferred_link;
        enum http_conn_state state;
        struct http_req *req;

        struct buf head; /* an incomplete head */
        struct http_scan scan;
        struct buf in; /* came, but nobody may take it yet */

        /* the body of the current request, which outlives the request when dropped */
        bool body_chunked, body_done;
        uint64_t body_left; /* when not chunked */
        struct http_chunk chunk;
        uint64_t dropped;

        struct buf flight; /* being written */
        struct buf out;    /* waits behind it */
        uint64_t write_since;
        size_t write_mark; /* what waited at the last look */

        uint64_t deadline; /* uv_now() milliseconds, 0: none */
        bool reading, writing, feeding, deferred;
        bool keep;         /* another request may follow the current answer */
        bool awaits_100;   /* the client waits for "100 Continue" */
        bool linger;       /* unread bytes are likely: a plain close would reset the answer away */
        bool eof, broken, reject;
        bool reset;        /* close so that the client cannot take the answer for complete */
        char peer[64];
};

TAILQ_HEAD(http_conn_list, http_conn);

struct http_listener {
        union {
                uv_handle_t handle;
                uv_stream_t stream;
                uv_tcp_t tcp;
                uv_pipe_t pipe;
        } uv;
        struct http_server *server;
        struct http_listener *next;
        bool is_unix;
        bool stuck; /* a connection waits that there was no memory for */
};

struct http_server {
        uv_loop_t *loop;
        int spare_fd; /* given up to empty the queue when there are no more */
        struct http_limits limits;
        struct http_callbacks callbacks;
        void *user;

        struct http_listener *listeners;
        struct http_conn_list conns, deferred;
        unsigned conn_count, reject_count, deferred_count;
        unsigned handles; /* not yet closed; the server is freed with the last one */
        uv_timer_t tick;
        uv_idle_t later;
        bool draining, closing;
        void (*on_drained)(void *user);
        void *drained_user;
        void (*on_closed)(void *user);
        void *closed_user;

        uint64_t id_seed, id_count;
        int64_t date_second;
        char date[64];      /* the whole header line */
        struct buf scratch; /* the head of the answer that is being written */
        /* Tests and fuzzing: answers go here instead of to a socket. */
        struct buf *capture;
        char *read_buf;
};

/* --- server.c -------------------------------------------------------------------- */
/* A server without a listener; for tests and fuzzing, and the first half of new. */
struct http_server *http_server_alloc(uv_loop_t *loop, const struct http_limits *limits,
                                      const struct http_callbacks *callbacks, void *user);
void http_server_defer(struct http_server *s, struct http_conn *c);
/* One of the server's handles is closed for good. */
void http_server_release(struct http_server *s);
/* Counts a new connection and puts it on the list. */
void http_server_adopt(struct http_conn *c);
/* After a connection has left the list. */
void http_server_conn_left(struct http_server *s);

/* --- connection.c ----------------------------------------------------------------- */
/* NULL without memory. The handle is initialised but has no socket yet. */
struct http_conn *http_conn_new(struct http_server *s, bool is_unix);
void http_conn_begin(struct http_conn *c);
void http_conn_feed(struct http_conn *c, const char *p, size_t n);
void http_conn_eof(struct http_conn *c, int status);
void http_conn_run(struct http_conn *c);
/* Asks for http_conn_run() in the next turn of the loop. */
void http_conn_kick(struct http_conn *c);
/* Sets reading and deadline to what the state wants. */
void http_conn_settle(struct http_conn *c);
/* Refuses what the client is sending; headers are extra lines or NULL. */
void http_conn_refuse(struct http_conn *c, int status, const char *sentence, const char *headers);
/* The request is over, its answer queued: what the connection does next. */
void http_conn_answered(struct http_conn *c);
/* The peer is gone: tells the handler, closes. */
void http_conn_gone(struct http_conn *c);
void http_conn_destroy(struct http_conn *c);
void http_conn_tick(struct http_conn *c, uint64_t now);

/* --- output.c -------------------------------------------------------------------- */
/* uv_buf_init() takes the length as an unsigned int and would cut a long answer short. */
static inline uv_buf_t http_span(const void *p, size_t n)
{
        return (uv_buf_t){ .base = (char *)(uintptr_t)p, .len = n };
}

/* Writes the buffers in order. own, when given, is the owner of the last one and is
 * taken over (emptied) in any case. */
void http_conn_write(struct http_conn *c, const uv_buf_t *bufs, unsigned count, struct buf *own);
size_t http_conn_pending(const struct http_conn *c);
/* No more requests: closes once everything is written. */
void http_conn_finish(struct http_conn *c, bool linger);
/* Has a waiting peer taken nothing for too long? */
bool http_conn_stalled(struct http_conn *c, uint64_t now);

/* --- body.c ---------------------------------------------------------------------- */
void http_body_begin(struct http_conn *c, const struct http_head *head);
/* Hands on body bytes. Returns whether anything happened; *ret_used says what was taken. */
bool http_body_step(struct http_conn *c, const char *p, size_t n, size_t *ret_used);
/* The same without a handler: reads past what is left. */
bool http_body_drop_step(struct http_conn *c, const char *p, size_t n, size_t *ret_used);
/* Would reading what is left of the body cost too much to keep the connection? */
bool http_body_too_long_to_drop(const struct http_conn *c);

/* --- request.c ------------------------------------------------------------------- */
struct http_req *http_req_new(struct http_conn *c);
void http_req_set_id(struct http_req *req);
/* Tells the access log and frees. */
void http_req_done(struct http_req *req);

/* --- response.c ------------------------------------------------------------------ */
void http_refusal_write(struct http_req *req, int status, const char *sentence,
                        const char *headers);
