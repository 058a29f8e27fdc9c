/* From bytes to a validated head.
 *
 * Request smuggling needs two parsers that read the same bytes differently. So the
 * bytes pass our own rules first, which refuse every construct that parsers are known
 * to disagree about, and then http_parser, and both must have understood the same. */
#include "http/http_internal.h"

#include <assert.h>
#include <string.h>
#include <strings.h>

/* Both headers name an enum http_method; the library's is only used here. */
#define http_method http_parser_method
#include <http_parser.h>
#undef http_method

static int refuse(struct http_refusal *why, int status, const char *sentence)
{
        why->status = status;
        why->sentence = sentence;
        return -1;
}

/* Bytes that may stand in a method or a header name (RFC 9110, "token"). */
static bool is_tchar(unsigned char c)
{
        if ((c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z'))
                return true;
        return c != 0 && strchr("!#$%&'*+-.^_`|~", c) != NULL;
}

bool http_is_token(struct str s)
{
        for (size_t i = 0; i < s.n; i++)
                if (!is_tchar((unsigned char)s.p[i]))
                        return false;
        return s.n > 0;
}

/* Splits "METHOD target HTTP/x.y"; exactly one space between, none elsewhere. */
static int split_request_line(struct str line, struct str *method, struct str *target,
                              struct http_refusal *why)
{
        const char *sp1 = memchr(line.p, ' ', line.n);
        if (!sp1 || memchr(line.p, '\t', line.n)) /* a tab parts words for some */
                return refuse(why, 400, "The request line is malformed.");
        *method = (struct str){ line.p, (size_t)(sp1 - line.p) };
        if (!http_is_token(*method))
                return refuse(why, 400, "The method is malformed.");

        size_t rest = line.n - method->n - 1;
        const char *sp2 = memchr(sp1 + 1, ' ', rest);
        if (!sp2) /* HTTP/0.9, or no HTTP at all */
                return refuse(why, 400, "The request line has no HTTP version.");
        *target = (struct str){ sp1 + 1, (size_t)(sp2 - sp1 - 1) };
        struct str version = { sp2 + 1, rest - target->n - 1 };

        bool shaped = version.n == 8 && memcmp(version.p, "HTTP/", 5) == 0 &&
                      version.p[5] >= '0' && version.p[5] <= '9' && version.p[6] == '.' &&
                      version.p[7] >= '0' && version.p[7] <= '9';
        if (!shaped)
                return refuse(why, 400, "The HTTP version is malformed.");
        /* The HTTP/2 preface comes by here: "PRI * HTTP/2.0". */
        if (!str_eq(version, "HTTP/1.1") && !str_eq(version, "HTTP/1.0"))
                return refuse(why, 505, "This server speaks HTTP/1.1 and HTTP/1.0.");
        if (target->n == 0)
                return refuse(why, 400, "The request target is empty.");
        return 0;
}

/* A line has ended at p[s->at - 2]. 1 when it was the empty one that ends the head. */
static int end_line(struct http_scan *s, const char *p, const struct http_limits *l,
                    struct http_refusal *why)
{
        size_t len = s->at - 2 - s->line;
        struct str line = { p + s->line, len };
        s->line = s->at;
        if (s->lines == 0) {
                /* One empty line before a request is old clients' habit (RFC 9112, 2.2). */
                if (len == 0)
                        return s->at == 2 ? 0 : refuse(why, 400, "The request line is empty.");
                struct str method, target;
                if (split_request_line(line, &method, &target, why) < 0)
                        return -1;
        } else if (len == 0) {
                return 1;
        } else if (s->lines > l->header_count) {
                return refuse(why, 431, "The request has too many headers.");
        }
        s->lines++;
        return 0;
}

int http_head_scan(struct http_scan *s, const char *p, size_t n, const struct http_limits *l,
                   size_t *ret_n, struct http_refusal *why)
{
        size_t end = n < l->head_bytes ? n : l->head_bytes;
        while (s->at < end) {
                unsigned char c = (unsigned char)p[s->at++];
                bool after_cr = s->at >= 2 && p[s->at - 2] == '\r';
                if (after_cr != (c == '\n'))
                        /* A bare CR or LF is a line end to some and a byte to others. */
                        return refuse(why, 400, "Lines must end in CR LF.");
                if (c == '\n') {
                        int r = end_line(s, p, l, why);
                        if (r < 0)
                                return r;
                        if (r > 0) {
                                *ret_n = s->at;
                                return 1;
                        }
                        continue;
                }
                /* NUL ends strings for some; TLS hellos and terminals' codes end here too. */
                if ((c < 0x20 && c != '\r' && c != '\t') || c == 0x7f)
                        return refuse(why, 400, "The head contains a control byte.");
        }
        if (n < l->head_bytes)
                return 0;
        return s->lines == 0 ? refuse(why, 414, "The request target is too long.")
                             : refuse(why, 431, "The request head is too large.");
}

/* "name: value" without the line end. */
static int split_field(struct str line, struct http_field *ret, struct http_refusal *why)
{
        if (line.p[0] == ' ' || line.p[0] == '\t')
                /* obs-fold: one header to some, a header of its own to others. */
                return refuse(why, 400, "A header continues on a second line.");
        const char *colon = memchr(line.p, ':', line.n);
        if (!colon)
                return refuse(why, 400, "A header has no colon.");
        ret->name = (struct str){ line.p, (size_t)(colon - line.p) };
        /* "Content-Length : 5" is a token no more, nor is an empty name. */
        if (!http_is_token(ret->name))
                return refuse(why, 400, "A header name is malformed.");
        struct str v = { colon + 1, line.n - ret->name.n - 1 };
        while (v.n && (v.p[0] == ' ' || v.p[0] == '\t')) {
                v.p++;
                v.n--;
        }
        while (v.n && (v.p[v.n - 1] == ' ' || v.p[v.n - 1] == '\t'))
                v.n--;
        ret->value = v;
        return 0;
}

static const struct http_field *find(const struct http_head *h, const char *name, unsigned *ret_n)
{
        const struct http_field *first = NULL;
        *ret_n = 0;
        for (unsigned i = 0; i < h->field_count; i++) {
                if (!str_eq_fold(h->fields[i].name, name))
                        continue;
                if ((*ret_n)++ == 0)
                        first = &h->fields[i];
        }
        return first;
}

/* How long the body is, in exactly one way of saying it. */
static int set_framing(struct http_head *h, struct http_refusal *why)
{
        unsigned lengths, codings;
        const struct http_field *cl = find(h, "Content-Length", &lengths);
        const struct http_field *te = find(h, "Transfer-Encoding", &codings);
        if (cl && te)
                return refuse(why, 400, "Content-Length and Transfer-Encoding exclude each other.");
        if (lengths > 1 || codings > 1)
                return refuse(why, 400, "The length of the body is given more than once.");
        if (te) {
                if (h->http_1_0)
                        return refuse(why, 400, "HTTP/1.0 has no Transfer-Encoding.");
                if (!str_eq_fold(te->value, "chunked")) /* xchunked; gzip, chunked; … */
                        return refuse(why, 501, "The only Transfer-Encoding is chunked.");
                h->chunked = true;
                h->content_length = -1;
        }
        uint64_t n = 0;
        if (cl && !str_to_u64(cl->value, INT64_MAX, &n)) /* +5; 0x5; 5, 5; 2^64+5 */
                return refuse(why, 400, "Content-Length is no number.");
        if (cl)
                h->content_length = (int64_t)n;
        return 0;
}

static int check_host(const struct http_head *h, struct http_refusal *why)
{
        unsigned n;
        const struct http_field *host = find(h, "Host", &n);
        if (n > 1 || (n == 0 && !h->http_1_0))
                return refuse(why, 400, "A request has exactly one Host header.");
        for (size_t i = 0; host && i < host->value.n; i++) {
                unsigned char c = (unsigned char)host->value.p[i];
                if (c <= ' ' || c >= 0x7f || strchr("\"#/<>?@\\^`{|}", c))
                        return refuse(why, 400, "The Host header is malformed.");
        }
        return 0;
}

static int check_expect(struct http_head *h, struct http_refusal *why)
{
        if (h->http_1_0) /* RFC 9110, 10.1.1: not a thing before 1.1 */
                return 0;
        for (unsigned i = 0; i < h->field_count; i++) {
                if (!str_eq_fold(h->fields[i].name, "Expect"))
                        continue;
                if (!str_eq_fold(h->fields[i].value, "100-continue"))
                        return refuse(why, 417, "The only expectation met here is 100-continue.");
                h->expect_continue = true;
        }
        return 0;
}

const char *const http_method_names[] = {
        "GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "OTHER",
};
static_assert(ARRAY_SIZE(http_method_names) == HTTP_M_MAX, "a name for each method");

static enum http_method method_of(struct str name)
{
        for (int i = 0; i < HTTP_M_OTHER; i++)
                if (str_eq(name, http_method_names[i]))
                        return (enum http_method)i;
        return HTTP_M_OTHER;
}

/* origin-form, absolute-form, or "*" for OPTIONS. */
static int set_target(struct http_head *h, struct str target, struct http_refusal *why)
{
        if (memchr(target.p, '#', target.n))
                return refuse(why, 400, "The request target has a fragment.");
        if (str_eq(target, "*") && h->method_id == HTTP_M_OPTIONS) {
                h->path = target;
                return 0;
        }
        struct str rest = target;
        if (target.p[0] != '/') {
                size_t scheme = target.n > 7 && strncasecmp(target.p, "http://", 7) == 0    ? 7
                                : target.n > 8 && strncasecmp(target.p, "https://", 8) == 0 ? 8
                                                                                            : 0;
                if (scheme == 0)
                        return refuse(why, 400, "The request target is malformed.");
                rest = (struct str){ target.p + scheme, target.n - scheme };
                size_t host = 0;
                while (host < rest.n && rest.p[host] != '/' && rest.p[host] != '?')
                        host++;
                if (host == 0 || memchr(rest.p, '@', host))
                        return refuse(why, 400, "The request target has no proper host.");
                rest = (struct str){ rest.p + host, rest.n - host };
        }
        const char *mark = rest.n ? memchr(rest.p, '?', rest.n) : NULL;
        h->path = (struct str){ rest.p, mark ? (size_t)(mark - rest.p) : rest.n };
        if (mark)
                h->query = (struct str){ mark + 1, rest.n - h->path.n - 1 };
        if (h->path.n == 0)
                h->path = STR("/");
        return 0;
}

/* What http_parser made of the same bytes. */
struct second {
        unsigned fields;
        struct str target;
        bool complete, keep_alive;
};

static int second_url(http_parser *p, const char *at, size_t n)
{
        struct second *s = p->data;
        s->target = (struct str){ at, n };
        return 0;
}

static int second_field(http_parser *p, const char *at, size_t n)
{
        (void)at;
        (void)n;
        ((struct second *)p->data)->fields++;
        return 0;
}

static int second_complete(http_parser *p)
{
        struct second *s = p->data;
        s->complete = true;
        s->keep_alive = http_should_keep_alive(p) != 0;
        return 0;
}

static int ask_second_parser(struct http_head *h, struct str target, const char *p, size_t n,
                             struct http_refusal *why)
{
        static const http_parser_settings settings = {
                .on_url = second_url,
                .on_header_field = second_field,
                .on_headers_complete = second_complete,
        };
        struct second s = { 0 };
        http_parser parser;
        /* head_bytes is the limit, and has been applied; the library has one of its own. */
        http_parser_set_max_header_size(UINT32_MAX);
        http_parser_init(&parser, HTTP_REQUEST);
        parser.data = &s;
        size_t used = http_parser_execute(&parser, &settings, p, n);
        if (HTTP_PARSER_ERRNO(&parser) == HPE_INVALID_METHOD)
                return refuse(why, 501, "The method is unknown.");
        uint64_t length = h->chunked || h->content_length == 0 ? 0 : (uint64_t)h->content_length;
        uint64_t seen = parser.flags & F_CONTENTLENGTH ? parser.content_length : 0;
        bool same = HTTP_PARSER_ERRNO(&parser) == HPE_OK && used == n && s.complete &&
                    s.fields == h->field_count && s.target.p == target.p &&
                    s.target.n == target.n && h->chunked == ((parser.flags & F_CHUNKED) != 0) &&
                    length == seen;
        if (!same)
                return refuse(why, 400, "The request head is malformed.");
        h->keep_alive = s.keep_alive;
        return 0;
}

int http_head_parse(const char *p, size_t n, struct http_field *fields, unsigned max_fields,
                    struct http_head *ret, struct http_refusal *why)
{
        struct http_head h = { .fields = fields };
        struct str target = { NULL, 0 };
        size_t at = n >= 2 && p[0] == '\r' ? 2 : 0;
        for (bool first = true;; first = false) {
                const char *end = at < n ? memmem(p + at, n - at, "\r\n", 2) : NULL;
                if (!end)
                        return refuse(why, 400, "The request head is malformed.");
                struct str line = { p + at, (size_t)(end - p) - at };
                at += line.n + 2;
                if (first) {
                        if (split_request_line(line, &h.method, &target, why) < 0)
                                return -1;
                        h.http_1_0 = line.p[line.n - 1] == '0';
                        continue;
                }
                if (line.n == 0)
                        break;
                if (h.field_count == max_fields)
                        return refuse(why, 431, "The request has too many headers.");
                if (split_field(line, &h.fields[h.field_count], why) < 0)
                        return -1;
                h.field_count++;
        }
        h.method_id = method_of(h.method);
        if (str_eq(h.method, "CONNECT")) /* its target has a form of its own */
                return refuse(why, 501, "This server is no proxy.");
        if (set_target(&h, target, why) < 0 || set_framing(&h, why) < 0 ||
            check_host(&h, why) < 0 || check_expect(&h, why) < 0 ||
            ask_second_parser(&h, target, p, at, why) < 0)
                return -1;
        *ret = h;
        return 0;
}
