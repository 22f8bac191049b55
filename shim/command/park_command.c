/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The requests `park` and `wake`. All state belongs to the control thread, which waits for nothing
 * here: the park thread works, and the request is looked at again in turns.
 *
 *   {"ns":1000000,"state":"parked","to":"host","gpus":[{"uuid":"GPU-...","device":0,
 *    "parked_bytes":N,"live_bytes":N,"away_bytes":N,"stays":[{"what":"exposed","bytes":N}]}]}
 *
 * ns: how long it took. state: "parked", "woken" (also where nothing was away) or "refused"; then
 * "why" is one sentence, and nothing changed. parked_bytes: device memory that went back to the
 * driver in this park. live_bytes: of them, what was copied to the host. away_bytes: all that is
 * away now. stays: what the process still has on that GPU: "kept" (keep=), "exposed" (known outside
 * of the process, or beside such memory), "segments" (pools without an arena), "stream-ordered"
 * (the driver's own pools).
 *
 * PAGE_REPLY_DONE; PAGE_REPLY_PARTLY: something stays that was to go; PAGE_REPLY_REFUSED. The
 * reply's value is parked_bytes of all GPUs, and for a wake the bytes that came back.
 */
