/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The sections "domains" and "capture" of facts.c.
 */
#ifndef TESTS_GPU_FACTS_STREAMS_H
#define TESTS_GPU_FACTS_STREAMS_H

/* Before the sections: finds functions and loads the kernels. A context is current. */
void facts_streams_start(void);
void section_domains(void);
void section_capture(void);

#endif
