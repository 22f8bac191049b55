/* SPDX-License-Identifier: BSD-2-Clause */
/* Stands for the log (shim/process/log.c), and says nothing. */
#ifndef TESTS_UNIT_NO_LOG_H
#define TESTS_UNIT_NO_LOG_H

#include "shim/process/log.h"

bool log_wants(enum log_level level)
{
    return false;
}

void log_line(enum log_level level, const char *format, ...)
{
}

#endif
