/* Names of images: a path, or an alias of another name. */
#include "config/config_table.h"

#include <errno.h>
#include <string.h>

#include "base/buf.h"
#include "base/quantity.h"

#define IMAGE_NAME_MAX 255
#define IMAGES_MAX 1000
#define LISTED_BYTES 160 /* of known names in a sentence */

bool config_image_name_ok(struct str name)
{
        /* What registries allow in a reference; a leading '/' would be a path. */
        static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                      "0123456789._-:/@";
        if (name.n == 0 || name.n > IMAGE_NAME_MAX || name.p[0] == '/')
                return false;
        for (size_t i = 0; i < name.n; i++)
                if (name.p[i] == '\0' || !strchr(allowed, name.p[i]))
                        return false;
        return true;
}

static const struct config_image *lookup(const struct config *c, struct str name)
{
        for (size_t i = 0; i < c->image_count; i++)
                if (str_eq(name, c->images[i].name))
                        return &c->images[i];
        return NULL;
}

static int check_image(struct config *c, struct str name, struct str target, struct err *e)
{
        char shown[ECHO_BYTES];
        const struct config_image *before = lookup(c, name);
        if (!config_image_name_ok(name))
                return fail_user(e, -EINVAL,
                                 "'%s' is not an image name: letters, digits and ._-:/@ are "
                                 "allowed", echo_value(name, shown));
        if (str_eq(name, CONFIG_HOST_IMAGE))
                return fail_user(e, -EINVAL, "the image 'host' is built in; choose another name");
        if (before)
                return fail_user(e, -EEXIST, "image '%s' was already named in line %u",
                                 before->name, before->line);
        if (c->image_count >= IMAGES_MAX)
                return fail_user(e, -E2BIG, "more than %d images", IMAGES_MAX);
        if (str_eq(target, "/"))
                return fail_user(e, -EINVAL,
                                 "'/' as an image would show all of the host's files to "
                                 "sandboxes; the built-in image 'host' shows only its /usr");
        bool path = target.n && target.p[0] == '/' && target.n < 4096;
        if (!path && !config_image_name_ok(target))
                return fail_user(e, -EINVAL,
                                 "'%s' is neither an absolute path nor the name of an image",
                                 echo_value(target, shown));
        return 0;
}

int config_add_image(struct config *c, struct str name, struct str target, unsigned line,
                     struct err *e)
{
        int r = check_image(c, name, target, e);
        if (r < 0)
                return r;
        _cleanup_free_ char *own_name = str_dup_c(name), *own_target = str_dup_c(target);
        struct config_image *grown =
                reallocarray(c->images, c->image_count + 1, sizeof *c->images);
        if (grown)
                c->images = grown;
        if (!grown || !own_name || !own_target)
                return fail_host(e, -ENOMEM, "out of memory");
        c->images[c->image_count++] = (struct config_image){
                .name = steal_ptr(&own_name),
                .target = steal_ptr(&own_target),
                .line = line,
        };
        return 0;
}

/* Follows aliases. Each step uses up one entry, so more steps than entries is a loop. */
static int follow(const struct config *c, struct str name, const char **ret_name,
                  const char **ret_path)
{
        for (size_t step = 0; step <= c->image_count; step++) {
                if (str_eq(name, CONFIG_HOST_IMAGE)) {
                        *ret_name = CONFIG_HOST_IMAGE;
                        *ret_path = NULL;
                        return 0;
                }
                const struct config_image *i = lookup(c, name);
                if (!i)
                        return -ENOENT;
                if (i->target[0] == '/') {
                        *ret_name = i->name;
                        *ret_path = i->target;
                        return 0;
                }
                name = str_c(i->target);
        }
        return -ELOOP;
}

static int unknown_image(const struct config *c, struct str name, struct err *e)
{
        char shown[ECHO_BYTES];
        _cleanup_buf_ struct buf list = { 0 };
        buf_adds(&list, CONFIG_HOST_IMAGE);
        for (size_t i = 0; i < c->image_count; i++) {
                if (list.len + strlen(c->images[i].name) > LISTED_BYTES) {
                        buf_addf(&list, " and %zu more", c->image_count - i);
                        break;
                }
                buf_addf(&list, ", %s", c->images[i].name);
        }
        const char *known = buf_cstr(&list);
        return fail_user(e, -ENOENT,
                         "unknown image '%s'; known images: %s (the setting image_fallback can "
                         "map unknown names to one of them)",
                         echo_value(name, shown), known ? known : CONFIG_HOST_IMAGE);
}

int config_image_find(const struct config *c, struct str name, const char **ret_name,
                      const char **ret_path, struct err *e)
{
        struct str wanted = name.n ? name : str_c(c->image);
        int r = follow(c, wanted, ret_name, ret_path);
        if (r == -ENOENT && c->image_fallback)
                r = follow(c, str_c(c->image_fallback), ret_name, ret_path);
        if (r == -ENOENT)
                return unknown_image(c, wanted, e);
        if (r < 0)
                return fail_host(e, r, "the aliases of image '%s' go in a circle", c->image);
        return 0;
}

int config_check_images(const struct config *c, struct err *e)
{
        const char *name, *path;
        for (size_t i = 0; i < c->image_count; i++) {
                const struct config_image *m = &c->images[i];
                int r = follow(c, str_c(m->name), &name, &path);
                if (r == -ELOOP)
                        return fail_user(e, r, "%s:%u: the aliases of image '%s' go in a circle",
                                         c->file, m->line, m->name);
                if (r < 0)
                        return fail_user(e, r,
                                         "%s:%u: image '%s' is an alias that ends at an unknown "
                                         "image; write an absolute path or the name of an image "
                                         "in [images]", c->file, m->line, m->name);
        }
        const char *const named[] = { c->image, c->image_fallback };
        const char *const setting[] = { "image", "image_fallback" };
        for (size_t i = 0; i < ARRAY_SIZE(named); i++)
                if (named[i] && follow(c, str_c(named[i]), &name, &path) < 0)
                        return fail_user(e, -ENOENT,
                                         "the setting %s names the image '%s', which is not in "
                                         "[images]", setting[i], named[i]);
        return 0;
}
