/* main.c — runs every Check suite; a file test_NAME.c gives `Suite *suite_NAME(void)`. Arguments name the suites to run. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#define SUITE(name) Suite *suite_##name(void);
#include "suites.def"
#undef SUITE

int main(int argc, char **argv)
{
    SRunner *runner = srunner_create(NULL);
#define SUITE(name)                                                                                                    \
    {                                                                                                                  \
        int wanted = argc < 2;                                                                                         \
        for (int i = 1; i < argc; i++) wanted |= !strcmp(argv[i], #name);                                              \
        if (wanted) srunner_add_suite(runner, suite_##name());                                                         \
    }
#include "suites.def"
#undef SUITE
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
