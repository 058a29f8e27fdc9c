/* What honest clients send, and what surrounds an upload. Names that want out and broken
 * archives are in test_untar_hostile.c. */
#include "untar_bed.h"

/* --- ordinary archives ------------------------------------------------------------ */

static void plain_and_gzip(void)
{
        for (int gz = 0; gz < 2; gz++)
                for (size_t step = 1; step < 200000; step *= 37) {
                        begin();
                        frame_bytes = step;
                        file("a.txt", "one");
                        file("deep/er/b.txt", "two");
                        file("empty", "");
                        finish();
                        if (gz)
                                compress_archive();
                        unpack();
                        done(3, 0);
                        CHECK_STR(get("dest/a.txt"), "one");
                        CHECK_STR(get("dest/deep/er/b.txt"), "two");
                        CHECK_STR(get("dest/empty"), "");
                        end_checks();
                }
}

static void dest_is_made(void)
{
        struct stat st;
        begin();
        req.dest = "/new/deep//./dir/";
        file("a", "x");
        finish();
        unpack();
        done(1, 0);
        CHECK_STR(get("new/deep/dir/a"), "x");
        CHECK(stat(path_of("new/deep"), &st) == 0 && (st.st_mode & 07777) == 0755);
        end_checks();
}

static void dest_stays_in_root(void)
{
        begin();
        req.dest = "/../../outside/../up";
        file("a", "x");
        finish();
        unpack();
        CHECK_STR(get("up/a"), "x");
        begin();
        CHECK_INT(symlink("/dest/inner", path_of("abs")), 0);
        CHECK_INT(mkdir(path_of("dest/inner"), 0755), 0);
        req.dest = "/abs/more"; /* an absolute link means the sandbox's root */
        file("a", "x");
        finish();
        unpack();
        done(1, 0);
        CHECK_STR(get("dest/inner/more/a"), "x");
        begin();
        req.dest = "/canary";
        file("a", "x");
        finish();
        unpack();
        failed(ENOTDIR);
        begin();
        CHECK_INT(symlink("nowhere", path_of("dangling")), 0);
        req.dest = "/dangling/x";
        file("a", "x");
        finish();
        unpack();
        CHECK_INT(ans.type, FRAME_FAIL);
        end_checks();
}

static void modes_and_times(void)
{
        struct stat st;
        begin();
        member("suid", '0', NULL, 06755, "x");
        member("sticky", '0', NULL, 01000, "x");
        member("dir/", '5', NULL, 07500, NULL);
        file("dir/inside", "x");
        finish();
        unpack();
        done(4, 0);
        CHECK(stat(path_of("dest/suid"), &st) == 0 && (st.st_mode & 07777) == 0755);
        CHECK_INT(st.st_mtim.tv_sec, 1000000000);
        CHECK(stat(path_of("dest/sticky"), &st) == 0 && (st.st_mode & 07777) == 0600);
        CHECK(stat(path_of("dest/dir"), &st) == 0 && (st.st_mode & 07777) == 0700);
        CHECK_INT(st.st_mtim.tv_sec, 1000000000);
        CHECK(st.st_uid == getuid());
        end_checks();
}

static void odd_times_and_owners(void)
{
        struct stat st;
        begin();
        pax("mtime", "-5");
        file("before", "x");
        pax("mtime", "99999999999999");
        file("after", "x");
        pax("uid", "99999999999999999999");
        file("owner", "x");
        finish();
        unpack();
        done(3, 0);
        CHECK(stat(path_of("dest/before"), &st) == 0 && st.st_mtim.tv_sec == 0);
        CHECK(stat(path_of("dest/after"), &st) == 0 && st.st_mtim.tv_sec <= 253402300799);
        CHECK(stat(path_of("dest/owner"), &st) == 0 && st.st_uid == getuid());
        end_checks();
}

static void long_and_odd_names(void)
{
        char longname[4200] = "";
        begin();
        for (int i = 0; i < 20; i++)
                strcat(longname, "a-part-of-a-long-name/");
        strcat(longname, "f");
        pax("path", longname);
        file("short", "pax");
        buf_add(&ar, head("././@LongLink", 'L', 301, NULL, 0644), 512);
        memset(longname + 443, 0, sizeof longname - 443);
        memset(longname, 'g', 150);
        longname[150] = '/';
        memset(longname + 151, 'h', 149);
        longname[300] = 0;
        body(longname, 301);
        file("short", "gnu");
        pax("path", "caf\xc3\xa9/\xe2\x82\xac");
        file("short", "utf8");
        file("raw-\xff\xfe", "raw");
        pax("path", "pax-\xff\xfe");
        file("short", "rawpax");
        pax("linkpath", "caf\xc3\xa9/\xe2\x82\xac");
        member("slink", '2', "short", 0777, NULL);
        file("new\nline", "nl");
        file("back\\slash", "bs");
        finish();
        unpack();
        done(8, 0);
        CHECK_STR(get("dest/pax-\xff\xfe"), "rawpax");
        char target[100] = "";
        CHECK_INT(readlink(path_of("dest/slink"), target, 99), 9);
        CHECK_STR(target, "caf\xc3\xa9/\xe2\x82\xac");
        CHECK_STR(get("dest/caf\xc3\xa9/\xe2\x82\xac"), "utf8");
        CHECK_STR(get("dest/raw-\xff\xfe"), "raw");
        CHECK_STR(get("dest/new\nline"), "nl");
        CHECK_STR(get("dest/back\\slash"), "bs");
        char rel[4300];
        snprintf(rel, sizeof rel, "dest/%s", longname);
        CHECK_STR(get(rel), "gnu");
        end_checks();
}

static void own_tar_output(void)
{
        begin();
        char cmd[300];
        put("dest/file", "f");
        snprintf(cmd, sizeof cmd, "cd %s/dest && ln -s file link && ln file hard && mkdir e && "
                                  "tar czf ../a.tgz . && rm -r file link hard e", root);
        CHECK_INT(system(cmd), 0);
        int fd = open(path_of("a.tgz"), O_RDONLY);
        (void)buf_reserve(&ar, 65536);
        ssize_t n = read(fd, ar.data, 65536);
        ar.len = n > 0 ? (size_t)n : 0;
        (void)close(fd);
        unpack();
        done(4, 0); /* "./" itself is neither placed nor skipped */
        CHECK_STR(get("dest/file"), "f");
        CHECK_STR(get("dest/link"), "(link)");
        CHECK_STR(get("dest/hard"), "f");
        CHECK_STR(get("dest/e"), "(dir)");
        end_checks();
}

/* --- the surroundings ------------------------------------------------------------- */

static void no_space(void)
{
        begin();
        if (mount("tmpfs", dest, "tmpfs", 0, "size=64k") < 0)
                SKIP("cannot mount a tmpfs");
        static char data[200001];
        memset(data, 'd', 200000);
        file("small", "fits");
        file("big", data);
        finish();
        unpack();
        failed(ENOSPC);
        CHECK_STR(ans.message, "no space left in the sandbox after 1 members");
        CHECK_STR(get("dest/small"), "fits");
        CHECK_INT(entries("dest"), 1);
        end_checks();
        (void)umount(dest);
        CHECK_INT(mount("tmpfs", dest, "tmpfs", 0, "nr_inodes=5"), 0);
        for (int i = 0; i < 9; i++)
                file(((const char *[]){ "a", "b", "c", "d", "e", "f", "g", "h", "i" })[i], "");
        finish();
        unpack();
        failed(ENOSPC);
        end_checks();
        (void)umount(dest);
}

static void file_size_limit(void)
{
        static char data[20001];
        begin();
        memset(data, 'd', 20000);
        file("small", "fits");
        file("big", data);
        finish();
        child_fsize = 10000;
        unpack(); /* the limit's signal must not kill the worker */
        child_fsize = 0;
        failed(EFBIG);
        CHECK_STR(get("dest/small"), "fits");
        CHECK(absent("dest/big"));
        end_checks();
}

static void not_permitted(void)
{
        if (getuid() != 0)
                SKIP("needs root to become somebody else");
        begin();
        CHECK_INT(chmod(root, 0755), 0);
        file("f", "x");
        finish();
        child_uid = 65534;
        unpack(); /* dest is root's: no list of skipped names, but a failure */
        failed(EACCES);
        file("f", "x");
        finish();
        req.dest = "/other";
        unpack();
        failed(EACCES);
        child_uid = 0;
        end_checks();
}

/* An answer must arrive although most of the archive was never read. */
static void failure_is_heard(void)
{
        static char megs[1 << 20];
        begin();
        memset(megs, 'x', sizeof megs);
        for (int i = 0; i < 30; i++)
                buf_add(&ar, megs, sizeof megs);
        unpack();
        failed(EINVAL);
        end_checks();
}

/* The sandbox exchanges a directory for a link while members go through it. */
static void race_with_exchange(void)
{
        begin();
        CHECK_INT(mkdir(path_of("dest/d"), 0755), 0);
        CHECK_INT(symlink("..", path_of("dest/swap")), 0);
        pid_t pid = fork();
        if (pid == 0) {
                char d[100], s[100];
                (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
                snprintf(d, sizeof d, "%s/d", dest);
                snprintf(s, sizeof s, "%s/swap", dest);
                for (;;)
                        (void)renameat2(AT_FDCWD, d, AT_FDCWD, s, RENAME_EXCHANGE);
        }
        for (int round = 0; round < 20; round++) {
                req.max_members = 100000;
                for (int i = 0; i < 200; i++) {
                        file("d/canary", "dead");
                        file("other/x", "x"); /* so that the parent is not kept */
                        file("d/sub/new", "x");
                }
                finish();
                unpack();
                CHECK(ans.type == FRAME_DONE);
                CHECK_STR(get("canary"), "alive");
                CHECK(absent("sub"));
        }
        (void)kill(pid, SIGKILL);
        (void)waitpid(pid, NULL, 0);
        end_checks();
}

int main(void)
{
        if (!bed_make())
                return 1;
        RUN(plain_and_gzip);
        RUN(dest_is_made);
        RUN(dest_stays_in_root);
        RUN(modes_and_times);
        RUN(odd_times_and_owners);
        RUN(long_and_odd_names);
        RUN(own_tar_output);
        RUN(no_space);
        RUN(file_size_limit);
        RUN(not_permitted);
        RUN(failure_is_heard);
        RUN(race_with_exchange);
        return bed_done();
}
