/* SPDX-License-Identifier: BSD-2-Clause */
/* The parser of requests on any bytes, and on pieces of requests in any order. What it takes says
 * the same when it is written anew; what it refuses has an error that is JSON and fits. */
#include "shim/command/command.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

static const char *const pieces[] = {
    "flush",
    "look",
    "give",
    "set",
    "gpu=0",
    "gpu=",
    "keep=1",
    "wait=",
    "wait=5",
    "bytes=7",
    "frameworks=1",
    "gpu",
    "=",
    " ",
    "  ",
    "[gpu=1",
    "[gpu=0|1]",
    "NAME=VALUE",
    "...",
    "MAX_IDLE=1G",
    "a=b",
    "\n",
    "\x7f",
    "\xc3\xa9=",
    "\xff",
    "gpu==0",
    "gpu=UUID|N]=1",
    "flush=1",
};

static void require(bool holds)
{
    if (!holds)
        abort();
}

/* The bytes as they are, or each as the number of a piece. */
static size_t make_text(const uint8_t *data, size_t size_bytes, char text[PAGE_ASK_BYTES + 1])
{
    size_t used = 0;
    if (size_bytes && data[0] % 2) {
        used = size_bytes - 1 < PAGE_ASK_BYTES ? size_bytes - 1 : PAGE_ASK_BYTES;
        memcpy(text, data + 1, used);
    }
    for (size_t i = 1; size_bytes && data[0] % 2 == 0 && i < size_bytes; i++) {
        const char *piece = pieces[data[i] % (sizeof pieces / sizeof pieces[0])];
        size_t n = strlen(piece), blank = data[i] >= 0x40;
        if (used + n + blank > PAGE_ASK_BYTES)
            break;
        memcpy(text + used, piece, n);
        used += n;
        if (blank)
            text[used++] = ' ';
    }
    text[used] = '\0';
    return used;
}

static size_t write_anew(const struct command *c, char text[PAGE_ASK_BYTES + 1])
{
    struct text t = {text, PAGE_ASK_BYTES + 1, 0};
    text_add(&t, "%s", c->verb);
    for (size_t i = 0; i < c->num_words; i++)
        text_add(&t, " %s=%s", c->words[i].name, c->words[i].value);
    require(text_fits(&t));
    return t.used_bytes;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes)
{
    static char text[PAGE_ASK_BYTES + 1], again[PAGE_ASK_BYTES + 1], out[PAGE_REPLY_BYTES + 1];
    static struct command first, second;
    struct command_reply reply = {.text = {out, sizeof out, 0}};
    size_t n = make_text(data, size_bytes, text);
    int row = command_parse(text, n, &first, &reply);
    if (row < 0) {
        require(text_fits(&reply.text) && reply.text.used_bytes == strlen(out));
        require(!strncmp(out, "{\"error\":\"", 10) && !strcmp(out + strlen(out) - 2, "\"}"));
        return 0;
    }
    require(reply.text.used_bytes == 0 && first.num_words <= COMMAND_WORDS_MAX);
    for (size_t i = 0; i < first.num_words; i++) {
        const struct command_word *w = &first.words[i];
        require(w->name > text && w->value > w->name && w->value + strlen(w->value) <= text + n);
        require(!strpbrk(w->name, " =") && !strchr(w->value, ' '));
        require(command_value(&first, w->name) == w->value);
    }
    n = write_anew(&first, again);
    require(command_parse(again, n, &second, &reply) == row);
    require(second.num_words == first.num_words && !strcmp(second.verb, first.verb));
    for (size_t i = 0; i < first.num_words; i++) {
        require(!strcmp(second.words[i].name, first.words[i].name));
        require(!strcmp(second.words[i].value, first.words[i].value));
    }
    return 0;
}
