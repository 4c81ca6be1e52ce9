/* test_grid.c — text and lines in the cells of a screen. */
#include "tests/unit/console/app_case.h"

#include <math.h>

START_TEST(text_keeps_to_its_cells)
{
    char row[200];
    kv_grid_clear(&grid);
    ck_assert_int_eq(kv_grid_text(&grid, 0, 0, 6, KV_STYLE_NORMAL, true, "漢字テスト"), 6);
    kv_grid_row_text(&grid, 0, row, sizeof row);
    ck_assert_str_eq(row, "漢字…");
    kv_grid_text(&grid, 1, 0, 0, KV_STYLE_NORMAL, false, "e\xcc\x81\x1b[31m\xff!");
    kv_grid_row_text(&grid, 1, row, sizeof row);
    ck_assert_str_eq(row, "e\xcc\x81?[31m?!");
    grid.ascii = true;
    kv_grid_text(&grid, 2, 0, 0, KV_STYLE_NORMAL, false, "a ── ✓");
    kv_grid_row_text(&grid, 2, row, sizeof row);
    ck_assert_str_eq(row, "a -- +");
}
END_TEST

START_TEST(a_line_of_braille_shows_two_values_a_cell)
{
    double v[] = {0, 1, 2, 3, 4, 4, NAN, 4};
    char row[100];
    kv_grid_clear(&grid);
    kv_grid_spark(&grid, 0, 0, 10, KV_STYLE_NORMAL, v, 8);
    kv_grid_row_text(&grid, 0, row, sizeof row);
    ck_assert_str_eq(row, "⣀⣴⣿⢸");
    kv_grid_clear(&grid);
    grid.block = true;
    kv_grid_spark(&grid, 0, 0, 10, KV_STYLE_NORMAL, v, 6);
    kv_grid_row_text(&grid, 0, row, sizeof row);
    ck_assert_str_eq(row, "▁▂▄▆██");
    grid.block = false;
}
END_TEST

Suite *suite_grid(void);
Suite *suite_grid(void)
{
    Suite *s = suite_create("console/grid");
    TCase *t = app_case("grid");
    tcase_add_test(t, text_keeps_to_its_cells);
    tcase_add_test(t, a_line_of_braille_shows_two_values_a_cell);
    suite_add_tcase(s, t);
    return s;
}
