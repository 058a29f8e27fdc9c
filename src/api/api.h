/* What all protocols share: the server's state, routing, credentials, error bodies. */
#pragma once

#include "box/boxes.h"
#include "config/config.h"
#include "http/http.h"

#define API_MAX_PARAMS 4

struct api {
        uv_loop_t *loop;
        const struct config *config;
        struct boxes *boxes;
        struct http_server *http;
        /* index in the keeper's images for a resolved image name */
        int (*image_index)(const char *name, void *user);
        void *image_user;
};

/* One request on its way: in the request's arena. */
struct call {
        struct api *api;
        struct http_req *req; /* NULL once the client has left */
        struct str params[API_MAX_PARAMS]; /* {…} of the route, decoded */
        void *op;             /* the handler's own */
};

struct route {
        enum http_method method;
        const char *path; /* "/v1/sandboxes/{}/exec": {} takes one segment */
        void (*handle)(struct call *c);
        bool open; /* needs no key */
};

/* The http server's on_request. user is the struct api. */
void api_on_request(struct http_req *req, void *user);
void api_on_done(struct http_req *req, int status, uint64_t bytes, uint64_t duration_ns, void *user);
const char *api_on_refuse(int status, const char *sentence, struct str path, struct buf *body, void *user);

/* {"error": "…"}; printf-like. */
void api_error(struct http_req *req, int status, const char *fmt, ...) _printf_(3, 4);
/* The status for a failure of the layers below. */
int api_status_of(int code, enum err_blame blame);

/* Is the request allowed at all? Strips /k/<key>. True: go on; false: it was answered. */
bool api_authorize(struct api *api, struct http_req *req, bool open);

/* Matches one route: fills params. */
bool route_match(const char *pattern, struct str path, struct str *params);
/* Checks and decodes one path segment into memory of the request: 0, -EINVAL. */
int route_decode(struct http_req *req, struct str segment, struct str *ret);

extern const struct route noxrunner_routes[];
extern const size_t noxrunner_route_count;
