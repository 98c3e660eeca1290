/* SHA-256 by the processor's own instructions: some ten times what portable code does.
 *
 *   Sha256()                    absent where the processor does not have them: use hashlib
 *       .update(data) -> None   not from two threads at once
 *       .digest() -> bytes      of all so far; more may follow
 */
#include "native.h"

#if !defined(__x86_64__)

int
sandman_add_sha256(PyObject *Py_UNUSED(module))
{
    return 0;
}

#else

#include <cpuid.h>
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define BLOCK 64
#define DIGEST 32
/* Below this a switch of threads costs more than it gives. */
#define ALONE_BYTES 4096

typedef struct {
    PyObject_HEAD
    uint32_t state[8];
    uint64_t total;
    uint8_t rest[BLOCK]; /* total % BLOCK bytes that are yet to be taken in */
    int busy;
} Sha256;

static const uint32_t START[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                  0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

static const uint32_t K[64] __attribute__((aligned(16))) = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static int
is_able(void)
{
    unsigned int a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_SSSE3) || !(c & bit_SSE4_1)) {
        return 0;
    }
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & (1U << 29));
}

/* The instructions keep the eight words as ABEF and CDGH, and do two rounds each. */
__attribute__((target("sha,sse4.1,ssse3"))) static void
take(uint32_t state[8], const uint8_t *data, size_t blocks)
{
    const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0bLL, 0x0405060700010203LL);
    __m128i low = _mm_loadu_si128((const __m128i *)&state[0]);  /* DCBA */
    __m128i high = _mm_loadu_si128((const __m128i *)&state[4]); /* HGFE */
    low = _mm_shuffle_epi32(low, 0xB1);                         /* CDAB */
    high = _mm_shuffle_epi32(high, 0x1B);                       /* EFGH */
    __m128i abef = _mm_alignr_epi8(low, high, 8);
    __m128i cdgh = _mm_blend_epi16(high, low, 0xF0);

    for (; blocks > 0; blocks--, data += BLOCK) {
        const __m128i abef_before = abef, cdgh_before = cdgh;
        __m128i words[4];
        for (int index = 0; index < 4; index++) {
            words[index] = _mm_loadu_si128((const __m128i *)(data + 16 * index));
            words[index] = _mm_shuffle_epi8(words[index], swap);
        }
#pragma GCC unroll 16
        for (int quad = 0; quad < 16; quad++) {
            __m128i now = words[quad & 3];
            __m128i sum = _mm_add_epi32(now, _mm_load_si128((const __m128i *)&K[4 * quad]));
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0E));
            if (quad < 12) {
                /* The words that stand in this place four quads on. */
                __m128i last = words[(quad + 3) & 3];
                __m128i next = _mm_sha256msg1_epu32(now, words[(quad + 1) & 3]);
                next = _mm_add_epi32(next, _mm_alignr_epi8(last, words[(quad + 2) & 3], 4));
                words[quad & 3] = _mm_sha256msg2_epu32(next, last);
            }
        }
        abef = _mm_add_epi32(abef, abef_before);
        cdgh = _mm_add_epi32(cdgh, cdgh_before);
    }
    low = _mm_shuffle_epi32(abef, 0x1B);  /* FEBA */
    high = _mm_shuffle_epi32(cdgh, 0xB1); /* DCHG */
    _mm_storeu_si128((__m128i *)&state[0], _mm_blend_epi16(low, high, 0xF0));
    _mm_storeu_si128((__m128i *)&state[4], _mm_alignr_epi8(high, low, 8));
}

static void
feed(Sha256 *self, const uint8_t *data, size_t size)
{
    size_t held = self->total % BLOCK;
    self->total += size;
    if (held) {
        size_t wanted = BLOCK - held;
        size_t taken = size < wanted ? size : wanted;
        memcpy(self->rest + held, data, taken);
        if (taken < wanted) {
            return;
        }
        take(self->state, self->rest, 1);
        data += taken;
        size -= taken;
    }
    take(self->state, data, size / BLOCK);
    memcpy(self->rest, data + size / BLOCK * BLOCK, size % BLOCK);
}

static PyObject *
sha256_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(args, keywords, ":Sha256", names)) {
        return NULL;
    }
    Sha256 *self = (Sha256 *)type->tp_alloc(type, 0);
    if (self != NULL) {
        memcpy(self->state, START, sizeof START);
    }
    return (PyObject *)self;
}

static void
sha256_free(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    type->tp_free(object);
    Py_DECREF(type);
}

static PyObject *
sha256_update(PyObject *object, PyObject *data)
{
    Sha256 *self = (Sha256 *)object;
    Py_buffer view;

    if (self->busy) {
        PyErr_SetString(PyExc_RuntimeError, "another thread is at it");
        return NULL;
    }
    if (PyObject_GetBuffer(data, &view, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    if (view.len < ALONE_BYTES) {
        feed(self, view.buf, (size_t)view.len);
    } else {
        self->busy = 1;
        Py_BEGIN_ALLOW_THREADS
        feed(self, view.buf, (size_t)view.len);
        Py_END_ALLOW_THREADS
        self->busy = 0;
    }
    PyBuffer_Release(&view);
    Py_RETURN_NONE;
}

static PyObject *
sha256_digest(PyObject *object, PyObject *Py_UNUSED(nothing))
{
    const Sha256 *self = (Sha256 *)object;
    uint32_t state[8];
    uint8_t last[2 * BLOCK] = {0}, out[DIGEST];
    size_t held = self->total % BLOCK;
    size_t size = held < BLOCK - 8 ? BLOCK : 2 * BLOCK;
    uint64_t bits = self->total * 8;

    if (self->busy) {
        PyErr_SetString(PyExc_RuntimeError, "another thread is at it");
        return NULL;
    }
    memcpy(state, self->state, sizeof state);
    memcpy(last, self->rest, held);
    last[held] = 0x80;
    for (int index = 0; index < 8; index++) {
        last[size - 1 - (size_t)index] = (uint8_t)(bits >> (8 * index));
    }
    take(state, last, size / BLOCK);
    for (int index = 0; index < DIGEST; index++) {
        out[index] = (uint8_t)(state[index / 4] >> (24 - 8 * (index % 4)));
    }
    return PyBytes_FromStringAndSize((char *)out, DIGEST);
}

static PyMethodDef sha256_methods[] = {
    {"update", sha256_update, METH_O, NULL},
    {"digest", sha256_digest, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot sha256_slots[] = {
    {Py_tp_new, sha256_new},
    {Py_tp_dealloc, sha256_free},
    {Py_tp_methods, sha256_methods},
    {0, NULL},
};

static PyType_Spec sha256_spec = {
    .name = "_sandman.Sha256",
    .basicsize = sizeof(Sha256),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = sha256_slots,
};

int
sandman_add_sha256(PyObject *module)
{
    if (!is_able()) {
        return 0;
    }
    PyObject *type = PyType_FromModuleAndSpec(module, &sha256_spec, NULL);
    if (type == NULL) {
        return -1;
    }
    int result = PyModule_AddObjectRef(module, "Sha256", type);
    Py_DECREF(type);
    return result;
}

#endif
