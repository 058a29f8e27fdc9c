#include "cli/version.h"

#include <archive.h>
#include <http_parser.h>
#include <isa-l.h>
#include <jansson.h>
#include <seccomp.h>
#include <sqlite3.h>
#include <stdio.h>
#include <uv.h>

int version_main(int argc, char **argv)
{
        (void)argc;
        (void)argv;
        unsigned long http = http_parser_version();
        const struct scmp_version *filter = seccomp_version();
        printf("cloche %s\n", CLOCHE_VERSION);
        printf("  libuv        %s\n", uv_version_string());
        printf("  http-parser  %lu.%lu.%lu\n", http >> 16 & 0xff, http >> 8 & 0xff, http & 0xff);
        printf("  jansson      %s\n", jansson_version_str());
        printf("  sqlite       %s\n", sqlite3_libversion());
        printf("  libseccomp   %u.%u.%u\n", filter->major, filter->minor, filter->micro);
        printf("  libarchive   %d.%d.%d\n", archive_version_number() / 1000000,
               archive_version_number() / 1000 % 1000, archive_version_number() % 1000);
        /* ISA-L has no call for it: this is what it was built against. */
        printf("  ISA-L        %d.%d.%d\n", ISAL_MAJOR_VERSION, ISAL_MINOR_VERSION,
               ISAL_PATCH_VERSION);
        return fflush(stdout) == 0 ? 0 : 1;
}
