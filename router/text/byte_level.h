/* byte_level.h - the printable alphabet in which tokenizer.json writes bytes.
 *
 * Each byte is one character: the bytes 21-7E, A1-AC and AE-FF (hex) stand for
 * themselves as code points; the 68 others, in rising order, are U+0100 and
 * up. Source: GPT-2's bytes_to_unicode, which Hugging Face tokenizers'
 * ByteLevel follows.
 *
 * Threads: any.
 */
#ifndef WEFT_ROUTER_TEXT_BYTE_LEVEL_H
#define WEFT_ROUTER_TEXT_BYTE_LEVEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The bytes that `text` (valid UTF-8) stands for, at most n of them, to
 * bytes_out. False: a character is not of the alphabet; bytes_out then holds
 * nothing of use. */
bool weft_byte_level_decode(const char *text, size_t n, char *bytes_out,
                            size_t *n_out);

/* The character of one byte: 1 or 2 bytes of UTF-8 and a NUL. */
void weft_byte_level_encode(uint8_t byte, char text_out[3]);

#endif
