/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See hash.h. The text is short, since ISO C takes literals of 4095 bytes. at and ky are addresses
 * in the page and in the key, my and ot in the sums, i is a row, by a distance of threads. a to d
 * are rows of the page, k to q rows of the key, and g the lanes.
 */
#include "shim/park/hash.h"

/* clang-format off */

#define LOAD(to, base, at)                                                                         \
    "ld.global.nc.v4.u32 {" to "0," to "1," to "2," to "3},[" base "+" at "];"
#define PAIR(lane, m, n, k, l)                                                                     \
    "add.u32 x," m "," k ";add.u32 y," n "," l ";mad.wide.u32 " lane ",x,y," lane ";"
#define LANE(lane, m, k)                                                                           \
    PAIR(lane, m "0", m "1", k "0", k "1") PAIR(lane, m "2", m "3", k "2", k "3")
#define ROW(m, k0, k1, k2, k3)                                                                     \
    LANE("g0", m, k0) LANE("g1", m, k1) LANE("g2", m, k2) LANE("g3", m, k3)
#define MOVE(to, from)                                                                             \
    "mov.u32 " to "0," from "0;mov.u32 " to "1," from "1;"                                         \
    "mov.u32 " to "2," from "2;mov.u32 " to "3," from "3;"
#define FOLD(at)                                                                                   \
    "@u ld.shared.u64 v,[my+" at "];@u ld.shared.u64 w,[ot+" at "];"                               \
    "@u add.u64 v,v,w;@u st.shared.u64 [my+" at "],v;"

const char hash_kernel[] = "gpucache_page_hash";

const char hash_ptx[] =
    ".version 6.0\n.target sm_50\n.address_size 64\n"
    ".visible .entry gpucache_page_hash(.param .u64 pages,.param .u64 count,.param .u64 key,"
    ".param .u64 out)\n.maxntid 256,1,1\n{\n"
    ".reg .pred u;"
    ".reg .b32 tid,cta,i,by,x,y,a<4>,b<4>,c<4>,d<4>,k<4>,l<4>,m<4>,n<4>,o<4>,p<4>,q<4>;"
    ".reg .b64 at,ky,my,ot,v,w,g<4>;"
    ".shared .align 8 .b8 sums[8192];"
    "mov.u32 tid,%tid.x;mov.u32 cta,%ctaid.x;"
    "cvt.u64.u32 v,cta;ld.param.u64 w,[count];setp.ge.u64 u,v,w;@u ret;"
    "mul.wide.u32 w,tid,16;shl.b64 v,v,21;"
    "ld.param.u64 at,[pages];add.u64 at,at,v;add.u64 at,at,w;"
    "ld.param.u64 ky,[key];add.u64 ky,ky,w;"
    LOAD("k", "ky", "0") LOAD("l", "ky", "4096") LOAD("m", "ky", "8192")
    "mov.u64 g0,0;mov.u64 g1,0;mov.u64 g2,0;mov.u64 g3,0;mov.u32 i,0;"
    "rows:\n"
    LOAD("a", "at", "0") LOAD("b", "at", "4096") LOAD("c", "at", "8192")
    LOAD("d", "at", "12288")
    LOAD("n", "ky", "12288") LOAD("o", "ky", "16384") LOAD("p", "ky", "20480")
    LOAD("q", "ky", "24576")
    ROW("a", "k", "l", "m", "n") ROW("b", "l", "m", "n", "o")
    ROW("c", "m", "n", "o", "p") ROW("d", "n", "o", "p", "q")
    MOVE("k", "o") MOVE("l", "p") MOVE("m", "q")
    "add.u64 at,at,16384;add.u64 ky,ky,16384;"
    "add.u32 i,i,4;setp.lt.u32 u,i,512;@u bra rows;"
    /* The sums of all threads. */
    "mov.u64 my,sums;mul.wide.u32 w,tid,8;add.u64 my,my,w;"
    "st.shared.u64 [my+0],g0;st.shared.u64 [my+2048],g1;"
    "st.shared.u64 [my+4096],g2;st.shared.u64 [my+6144],g3;"
    "mov.u32 by,128;"
    "fold:\nbar.sync 0;setp.lt.u32 u,tid,by;mul.wide.u32 w,by,8;add.u64 ot,my,w;"
    FOLD("0") FOLD("2048") FOLD("4096") FOLD("6144")
    "shr.u32 by,by,1;setp.ne.u32 u,by,0;@u bra fold;"
    "setp.ne.u32 u,tid,0;@u ret;"
    "ld.shared.u64 g0,[my+0];ld.shared.u64 g1,[my+2048];"
    "ld.shared.u64 g2,[my+4096];ld.shared.u64 g3,[my+6144];"
    "ld.param.u64 w,[out];mul.wide.u32 v,cta,32;add.u64 w,w,v;"
    "st.global.v2.u64 [w+0],{g0,g1};st.global.v2.u64 [w+16],{g2,g3};ret;}\n";

/* clang-format on */

struct hash hash_page(const void *page, const void *key)
{
    enum { WORDS = HASH_ROW_BYTES / 4 };
    const uint32_t *m = page, *k = key;
    struct hash h = {{0}};

    for (int j = 0; j < HASH_LANES; j++, k += WORDS)
        for (size_t i = 0; i < (size_t)HASH_ROWS * WORDS; i += 2)
            h.lanes[j] += (uint64_t)(uint32_t)(m[i] + k[i]) * (uint32_t)(m[i + 1] + k[i + 1]);
    return h;
}
