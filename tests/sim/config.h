/* SPDX-License-Identifier: BSD-2-Clause */
/* Settings of the simulated driver, from config.def. Read-only after config_read. */
#ifndef SIM_CONFIG_H
#define SIM_CONFIG_H

#include "tests/sim/driver.h"

struct config {
#define NUMBER(field, name, value, help) uint64_t field;
#define TEXT(field, name, help) const char *field;
#include "tests/sim/config.def"
};

extern struct config config;

/* Reads the environment, once. If a value cannot be parsed, it is named on stderr and the default
 * stays. */
void config_read(void);

/* Parses a number with an optional K, M, G or T. Returns false if text is not one. */
bool config_parse_number(const char *text, uint64_t *out);

#endif
