/* `cloche version`: this program's and its libraries' versions. */
#pragma once

int version_main(int argc, char **argv);
