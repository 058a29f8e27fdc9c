/* The HTTP/1.1 server: libuv streams, http_parser for the grammar, and rules of our
 * own where a lenient parser would let two parties disagree about a message.
 *
 * One loop, one thread. A request is handed to the handler when its head is complete;
 * the handler then says what it wants of the body:
 *   http_collect_body()  the whole body, bounded, then one call; or
 *   http_stream_body()   pieces as they come, with back pressure by http_pause_body()
 *                        and http_resume_body().
 * It answers at any later time, from any callback, in one piece (http_reply) or as a
 * stream (http_start, http_write…, http_end; http_abort when it cannot be finished
 * truthfully: the connection is cut so that no client takes it for complete).
 *
 * A client that leaves while its request is being worked on is noticed at once:
 * on_gone is called, exactly once, instead of anything else; the request is then
 * invalid. After http_reply/http_end/http_abort the request is invalid too. A client
 * that only shuts its sending side (nc -N) before the answer counts as having left. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/str.h"

struct http_server;
struct http_req;

enum http_method {
        HTTP_M_GET,
        HTTP_M_HEAD,
        HTTP_M_POST,
        HTTP_M_PUT,
        HTTP_M_DELETE,
        HTTP_M_PATCH,
        HTTP_M_OPTIONS,
        HTTP_M_OTHER,
        HTTP_M_MAX
};

/* Everything a stranger can make big. Values come from the configuration. */
struct http_limits {
        size_t head_bytes;        /* request line and headers */
        unsigned header_count;
        unsigned connections;     /* above: accept and answer 503, close */
        uint64_t head_timeout_ms; /* from the first byte (or accept) to the end of the head */
        uint64_t idle_timeout_ms; /* keep-alive without a request */
        uint64_t body_timeout_ms; /* no body byte for this long while we are reading */
        uint64_t write_timeout_ms; /* a peer that takes nothing for this long is cut */
};

struct http_callbacks {
        /* Head complete. The handler owns the request until it answers. */
        void (*on_request)(struct http_req *req, void *user);
        /* Called once for each finished request (answered, aborted or gone), for the
         * access log. bytes counts the response body. status 0: none was sent. Also
         * called for what the server refused before a handler saw it: http_user() is
         * then NULL, the path may be empty. */
        void (*on_done)(struct http_req *req, int status, uint64_t bytes, uint64_t duration_ns,
                        void *user);
        /* Writes the error body for what the server itself refuses (malformed head, too
         * large, …): fill *body and return its content type. path may be empty. */
        const char *(*on_refuse)(int status, const char *sentence, struct str path,
                                 struct buf *body, void *user);
};

/* listen_fd: already bound and listening; owned by the server from here on success.
 * The program must ignore SIGPIPE: libuv writes without MSG_NOSIGNAL. */
int http_server_new(uv_loop_t *loop, int listen_fd, const struct http_limits *limits,
                    const struct http_callbacks *callbacks, void *user,
                    struct http_server **ret, struct err *e);
/* Another listening socket with the same callbacks. */
int http_server_add_listener(struct http_server *s, int listen_fd, struct err *e);
/* Stops accepting and closes idle connections; requests in flight go on, and their
 * connections close after the answer. on_drained is called when none is left
 * (perhaps at once, from within this call's next loop turn). */
void http_server_drain(struct http_server *s, void (*on_drained)(void *user), void *user);
/* Cuts every connection that is left (on_gone runs for requests in work), closes all
 * handles, frees; on_closed is called from the loop when nothing remains. */
void http_server_close(struct http_server *s, void (*on_closed)(void *user), void *user);
unsigned http_server_connections(const struct http_server *s);

/* --- the request ------------------------------------------------------------ */
enum http_method http_method(const struct http_req *req);
const char *http_method_name(const struct http_req *req);
/* The path as sent, not decoded, without query; starts with '/', except for the "*" of
 * OPTIONS. Absolute-form targets arrive here as their path. */
struct str http_path(const struct http_req *req);
/* Replaces the path that handlers see (the /k/<key> prefix, the /koyeb-sandbox one);
 * must be a suffix of the current path. The access log then never sees the prefix. */
void http_set_path(struct http_req *req, struct str path);
struct str http_query(const struct http_req *req);
/* Finds name in the query and decodes its value ('+' is a space). 1 found, 0 not there,
 * -EINVAL malformed escape. *ret is allocated from the request's arena. */
int http_query_get(struct http_req *req, const char *name, struct str *ret);
/* Header value, {NULL,0} when absent. Names fold case. Count says how often it came. */
struct str http_header(const struct http_req *req, const char *name);
unsigned http_header_count(const struct http_req *req, const char *name);
/* Memory that lives as long as the request. NULL without memory. */
void *http_alloc(struct http_req *req, size_t n);
/* X-Request-ID: the client's own if it is printable ASCII of at most 128 bytes, else
 * generated. */
const char *http_request_id(const struct http_req *req);
/* "127.0.0.1:1234" */
const char *http_peer(const struct http_req *req);
void http_set_user(struct http_req *req, void *user);
void *http_user(const struct http_req *req);
/* -1 when chunked, else the declared length (0 without a body). */
int64_t http_content_length(const struct http_req *req);
uv_loop_t *http_loop(const struct http_req *req);

/* Called when the client has left before the answer was complete. Set it as early as
 * there is something to cancel; without one, leaving is only cleaned up. */
void http_on_gone(struct http_req *req, void (*on_gone)(struct http_req *req, void *user));

/* --- the body ---------------------------------------------------------------- */
/* on_body gets the whole body, or is not called at all: beyond max the server answers
 * 413 itself through on_refuse (after on_gone, if one is set), and the connection closes.
 * The body is valid as long as the request. Neither this nor http_stream_body() calls
 * back before it has returned. */
void http_collect_body(struct http_req *req, size_t max,
                       void (*on_body)(struct http_req *req, struct str body, void *user));
/* Pieces in order; p == NULL marks the end. The piece is valid during the call only.
 * Total beyond max: 413 as above after on_gone (max 0: no limit). */
void http_stream_body(struct http_req *req, uint64_t max,
                      void (*on_piece)(struct http_req *req, const char *p, size_t n,
                                       void *user));
void http_pause_body(struct http_req *req);
void http_resume_body(struct http_req *req);
/* Neither asked for: the body is read and dropped up to a bound after the answer so the
 * connection can be kept, else the connection closes after the answer. */

/* --- the answer --------------------------------------------------------------- */
/* Extra header for the answer; before http_reply/http_start. Values with control bytes
 * are refused (-EINVAL), and so are the headers that the server sets itself. */
int http_add_header(struct http_req *req, const char *name, const char *value);
/* Content-Length answer. type may be NULL (no body). Bytes are copied. HEAD sends no body. */
void http_reply(struct http_req *req, int status, const char *type, const void *body, size_t n);
/* The same, taking over the buffer (no copy). */
void http_reply_buf(struct http_req *req, int status, const char *type, struct buf *body);
/* Headers now, chunked (HTTP/1.0: until close). */
void http_start(struct http_req *req, int status, const char *type);
/* Queues a piece (copied). Returns how many bytes are still waiting for the peer: stop
 * producing above your mark and go on in on_drain, called when nothing waits any more. */
size_t http_write(struct http_req *req, const void *p, size_t n);
void http_on_drain(struct http_req *req, void (*on_drain)(struct http_req *req, void *user));
void http_end(struct http_req *req);
void http_abort(struct http_req *req);
bool http_started(const struct http_req *req);
