/* NoxRunner v1: handlers and what they share. */
#pragma once

#include <jansson.h>

#include "api/api.h"

void nox_health(struct call *c);
void nox_stats(struct call *c);
void nox_put(struct call *c);
void nox_touch(struct call *c);
void nox_delete(struct call *c);
void nox_exec(struct call *c);
void nox_upload(struct call *c);
void nox_download(struct call *c);

/* The body as a JSON object; an empty body is {}. NULL: it was answered (400). */
json_t *nox_parse(struct http_req *req, struct str body);
/* A path argument of the query: absolute as it is, relative below /workspace. NULL: it
 * was answered (400). In the request's arena. */
const char *nox_path(struct http_req *req, const char *name);
