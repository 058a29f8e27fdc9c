/* The masks over a fresh /proc, in a pid and mount namespace of their own. */
#include "os/rootfs_masks.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdbool.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "os/clone.h"
#include "os/sys.h"

static char dir[] = "/tmp/cloche-test-masks-XXXXXX";

static bool dir_is_empty(const char *path)
{
        unsigned n = 0;
        DIR *d = opendir(path);
        while (d && readdir(d))
                n++;
        if (d)
                (void)closedir(d);
        return n == 2;
}

/* Files of the table that anybody could read, and that this kernel has. */
static const char *const files[] = { "kallsyms", "keys", "key-users", "interrupts", "modules", "cmdline",
                                     "config.gz", "diskstats", "partitions", "timer_list", "sched_debug" };
static const char *const dirs[] = { "acpi", "bus", "fs", "irq", "scsi" };

static void check_masked(uint64_t present)
{
        char text[64], path[64];
        int proc = open("/proc", O_PATH | O_DIRECTORY);
        int box = open("/", O_PATH | O_DIRECTORY);
        CHECK_INT(rootfs_masks_apply(present, proc, box), 0);
        (void)close(box);
        for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
                struct stat st;
                if (fstatat(proc, files[i], &st, 0) < 0 || !(st.st_mode & 0007))
                        continue;
                if (file_read(proc, files[i], text, sizeof text) != 0) {
                        printf("/proc/%s can be read\n", files[i]);
                        CHECK(!"it is masked");
                }
                CHECK(file_write(proc, files[i], "x") < 0);
        }
        for (size_t i = 0; i < sizeof dirs / sizeof dirs[0]; i++) {
                (void)snprintf(path, sizeof path, "/proc/%s", dirs[i]);
                if (access(path, F_OK) == 0)
                        CHECK(dir_is_empty(path));
        }
        /* Not even root can turn a knob. */
        CHECK_INT(file_write(proc, "sys/kernel/hostname", "x"), -EROFS);
        CHECK_INT(file_write(proc, "sys/kernel/core_pattern", "x"), -EROFS);
        CHECK(file_read(proc, "sys/kernel/ostype", text, sizeof text) > 0);
        /* What programs need is there. */
        CHECK(file_read(proc, "self/status", text, sizeof text) > 0);
        CHECK(file_read(proc, "uptime", text, sizeof text) > 0);
        CHECK(file_read(proc, "stat", text, sizeof text) > 0);
        (void)close(proc);
}

static int in_namespace(void)
{
        uint64_t present = rootfs_masks_present();
        if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 || mount("tmpfs", dir, "tmpfs", 0, NULL) < 0 ||
            chdir(dir) < 0 || mkdir("empty", 0755) < 0 || mkdir("proc", 0755) < 0 ||
            close(open("nothing", O_CREAT | O_WRONLY, 0444)) < 0 || mount("proc", "proc", "proc", 0, NULL) < 0 ||
            mount(NULL, ".", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL) < 0 || chroot(".") < 0)
                return 99;
        check_masked(present);
        return check_failures ? 1 : 0;
}

static void test_masks(void)
{
        int status = -1;
        if (geteuid() != 0)
                SKIP("needs root");
        (void)fflush(stdout);
        pid_t pid = clone_fork(CLONE_NEWPID | CLONE_NEWNS, -1, NULL);
        if (pid == 0) {
                check_failures = 0;
                int r = in_namespace();
                (void)fflush(stdout);
                _exit(r);
        }
        (void)waitpid(pid, &status, 0);
        CHECK_INT(status, 0);
}

/* What the kernel has and shows to everybody is in the mask. */
static void test_present(void)
{
        uint64_t bits = rootfs_masks_present();
        struct stat st;
        if (stat("/proc/kallsyms", &st) < 0 && stat("/proc/cmdline", &st) < 0)
                SKIP("no usual /proc");
        CHECK(bits != 0);
        CHECK(bits == rootfs_masks_present());
}

/* Without something to cover with nothing is covered, and that is an error. */
static void test_without_covers(void)
{
        CHECK(rootfs_masks_apply(1, -1, -1) < 0);
}

int main(void)
{
        if (!mkdtemp(dir))
                return 1;
        RUN(test_present);
        RUN(test_masks);
        RUN(test_without_covers);
        (void)rmdir(dir);
        return check_done();
}
