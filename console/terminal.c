/* terminal.c — the one file that speaks to ncurses. */
#include "console/terminal.h"

#include <errno.h>
#include <ncurses.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_EDITED_BYTES = 1 << 20 };

static volatile sig_atomic_t stop_signal;
static bool coloured;

static void on_stop(int s)
{
    stop_signal = s;
}

static void on_crash(int s)
{
    endwin();
    signal(s, SIG_DFL);
    raise(s);
}

/* COLORFGBG is "foreground;background"; 7 and 9 to 15 are light. */
static bool light_background(enum kv_look look)
{
    const char *v = getenv("COLORFGBG"), *back = v ? strrchr(v, ';') : NULL;
    int colour = back ? atoi(back + 1) : 0;
    return look == KV_LOOK_LIGHT || (look == KV_LOOK_AUTO && (colour == 7 || colour > 8));
}

static void choose_colours(enum kv_look look)
{
    /* Yellow and cyan cannot be read on white. */
    static const short dark[KV_STYLES] = {-1, -1, -1, -1, COLOR_GREEN, COLOR_YELLOW, COLOR_RED, COLOR_CYAN, COLOR_CYAN};
    static const short light[KV_STYLES] = {-1, -1, -1, -1, COLOR_GREEN, COLOR_MAGENTA, COLOR_RED, COLOR_BLUE, COLOR_BLUE};
    const short *colour = light_background(look) ? light : dark;
    const char *plain = getenv("NO_COLOR");
    coloured = has_colors() && !(plain && *plain);
    if (!coloured) return;
    start_color();
    use_default_colors();
    for (short s = 1; s < KV_STYLES; s++) init_pair(s, colour[s], -1);
}

void kv_terminal_open(enum kv_look look, bool mouse)
{
    signal(SIGTERM, on_stop);
    signal(SIGHUP, on_stop);
    signal(SIGINT, on_stop);
    signal(SIGSEGV, on_crash);
    signal(SIGABRT, on_crash);
    signal(SIGPIPE, SIG_IGN);
    initscr(); /* its own handler gives the terminal back on Ctrl-Z and takes it again */
    cbreak();
    noecho();
    nonl();
    keypad(stdscr, TRUE);
    nodelay(stdscr, TRUE);
    set_escdelay(50);
    curs_set(0);
    if (mouse) mousemask(BUTTON1_CLICKED | BUTTON1_DOUBLE_CLICKED | BUTTON4_PRESSED | BUTTON5_PRESSED, NULL);
    choose_colours(look);
}

void kv_terminal_close(void)
{
    endwin();
}

bool kv_terminal_stopped(void)
{
    return stop_signal;
}

/* ---------------------------------------------------------------- keys */

static int key_of(int k)
{
    switch (k) {
    case KEY_UP: return KV_KEY_UP;
    case KEY_DOWN: return KV_KEY_DOWN;
    case KEY_PPAGE: return KV_KEY_PAGE_UP;
    case KEY_NPAGE: return KV_KEY_PAGE_DOWN;
    case KEY_HOME: return KV_KEY_HOME;
    case KEY_END: return KV_KEY_END;
    case KEY_ENTER: case '\r': case '\n': return KV_KEY_ENTER;
    case 27: return KV_KEY_ESCAPE;
    case KEY_BACKSPACE: case 127: case 8: return KV_KEY_BACKSPACE;
    case '\t': return KV_KEY_TAB;
    case KEY_BTAB: return KV_KEY_BACKTAB;
    default: return k >= 0x20 && k < 0x100 ? k : 0;
    }
}

static struct kv_wish mouse_event(struct kv_app *a)
{
    MEVENT m;
    struct kv_wish none = {0};
    if (getmouse(&m) != OK) return none;
    if (m.bstate & BUTTON4_PRESSED) return kv_app_key(a, KV_KEY_UP);
    if (m.bstate & BUTTON5_PRESSED) return kv_app_key(a, KV_KEY_DOWN);
    return kv_app_click(a, m.y, LINES, (m.bstate & BUTTON1_DOUBLE_CLICKED) != 0);
}

bool kv_terminal_keys(struct kv_app *a, void (*grant)(void *ctx, struct kv_wish w), void *ctx)
{
    bool touched = false;
    for (int k; (k = getch()) != ERR;) {
        touched = true;
        if (k == KEY_RESIZE) continue;
        int key = key_of(k);
        if (k == KEY_MOUSE) grant(ctx, mouse_event(a));
        else if (key) grant(ctx, kv_app_key(a, key));
    }
    return touched;
}

/* ---------------------------------------------------------------- screen */

static int attribute(enum kv_style s)
{
    static const int plain[KV_STYLES] = {[KV_STYLE_DIM] = A_DIM, [KV_STYLE_BOLD] = A_BOLD, [KV_STYLE_TITLE] = A_REVERSE, [KV_STYLE_WARN] = A_BOLD,
                                         [KV_STYLE_BAD] = A_BOLD | A_REVERSE, [KV_STYLE_ACCENT] = A_BOLD, [KV_STYLE_SELECTED] = A_REVERSE | A_BOLD};
    static const int extra[KV_STYLES] = {[KV_STYLE_DIM] = A_DIM, [KV_STYLE_BOLD] = A_BOLD, [KV_STYLE_TITLE] = A_REVERSE, [KV_STYLE_BAD] = A_BOLD, [KV_STYLE_SELECTED] = A_REVERSE};
    return coloured ? (int)COLOR_PAIR(s) | extra[s] : plain[s];
}

bool kv_terminal_resized(const struct kv_grid *g)
{
    return g->rows != LINES || g->cols != COLS;
}

bool kv_terminal_draw(struct kv_app *a, struct kv_grid *g)
{
    if (kv_terminal_resized(g)) {
        kv_grid_free(g);
        if (!kv_grid_init(g, LINES, COLS, a->ascii)) return false;
        erase();
    }
    a->cols = COLS;
    kv_app_draw(a, g);
    for (int r = 0; r < g->rows; r++)
        for (int c = 0; c < g->cols; c++) {
            const struct kv_cell *cell = &g->cell[r * g->cols + c];
            if (!cell->text[0]) continue;
            attrset(attribute((enum kv_style)cell->style));
            mvaddstr(r, c, cell->text);
        }
    refresh(); /* sends the cells that changed */
    return true;
}

/* ---------------------------------------------------------------- editor */

static bool write_all(int fd, const char *text)
{
    for (size_t n = strlen(text); n;) {
        ssize_t done = write(fd, text, n);
        if (done < 0 && errno != EINTR) return false;
        if (done > 0) text += done, n -= (size_t)done;
    }
    return true;
}

static char *read_all(const char *path)
{
    FILE *f = fopen(path, "rb");
    char *text = f ? malloc(MOST_EDITED_BYTES + 1) : NULL;
    size_t n = text ? fread(text, 1, MOST_EDITED_BYTES + 1, f) : 0;
    if (f) fclose(f);
    if (!text) return NULL;
    if (n > MOST_EDITED_BYTES) return free(text), NULL;
    text[n] = 0;
    return text;
}

/* Exit status of the editor, -1 when it did not run. The name may carry arguments, so a shell takes it apart. */
static int run_editor(const char *path)
{
    const char *visual = getenv("VISUAL"), *editor = getenv("EDITOR");
    char command[512];
    snprintf(command, sizeof command, "%s \"$1\"", visual && *visual ? visual : editor && *editor ? editor : "vi");
    pid_t pid = fork();
    if (pid == 0) {
        signal(SIGINT, SIG_DFL);
        signal(SIGPIPE, SIG_DFL);
        execl("/bin/sh", "sh", "-c", command, "sh", path, (char *)NULL);
        _exit(127);
    }
    int status = -1;
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR) { }
    return pid > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

char *kv_terminal_edit(const char *kind, const char *text, char *why, size_t cap)
{
    char path[256];
    const char *dir = getenv("TMPDIR");
    snprintf(path, sizeof path, "%.180s/kvasir-%.31s-XXXXXX.lua", dir && *dir ? dir : "/tmp", kind);
    int fd = mkstemps(path, 4);
    if (fd < 0 || !write_all(fd, text)) {
        snprintf(why, cap, "%s cannot be written: %s", path, strerror(errno));
        if (fd >= 0) close(fd), unlink(path);
        return NULL;
    }
    close(fd);
    def_prog_mode();
    endwin();
    int status = run_editor(path);
    reset_prog_mode();
    clearok(stdscr, TRUE);
    char *edited = status == 0 ? read_all(path) : NULL;
    if (status) snprintf(why, cap, "the editor ended with %d; nothing was done", status);
    else if (!edited) snprintf(why, cap, "what was edited cannot be read back, or is over 1 MiB");
    unlink(path);
    return edited;
}
