// The compression schemes and their options. `make tables` writes
// commprof/tune/compressors/scheme_table.py from this file.
#pragma once

#include <cstdint>

namespace commprof::compress {

// X(scheme, code, name, default of error feedback, exchange, meaning). The
// first 8 letters of a name must be unique, because a trace keeps only these.
// The exchange determines the predicted time (docs/compressors.md). Codes are
// part of the messages between ranks: never renumber. 6 and 8 belonged to
// removed schemes.
#define COMMPROF_SCHEMES(X)                                             \
  X(None,                                                               \
    0,                                                                  \
    "none",                                                             \
    0,                                                                  \
    Ring,                                                               \
    "fp32 all-reduce on the thread that compressors use: the baseline") \
  X(Half,                                                               \
    1,                                                                  \
    "fp16",                                                             \
    0,                                                                  \
    TwoPhase,                                                           \
    "16 bits a value with a power-of-two scale, 2x fewer bytes")        \
  X(Bfloat16,                                                           \
    2,                                                                  \
    "bf16",                                                             \
    0,                                                                  \
    TwoPhase,                                                           \
    "16 bits a value with fp32's range, 2x fewer bytes")                \
  X(Int8,                                                               \
    3,                                                                  \
    "int8",                                                             \
    0,                                                                  \
    TwoPhase,                                                           \
    "8 bits a value, a scale per 128 values: 3.9x fewer bytes")         \
  X(Int4,                                                               \
    4,                                                                  \
    "int4",                                                             \
    1,                                                                  \
    TwoPhase,                                                           \
    "4 bits a value, a scale per 64 values: 7.1x fewer bytes")          \
  X(TopK,                                                               \
    5,                                                                  \
    "topk",                                                             \
    1,                                                                  \
    Gather,                                                             \
    "only the largest values of each bucket, 16 bits each")             \
  X(PowerSgd,                                                           \
    7,                                                                  \
    "powersgd",                                                         \
    1,                                                                  \
    Ring,                                                               \
    "two thin factors in place of each matrix (PowerSGD)")

// Same columns as above. Each of these schemes has the code number and the
// implementation of another scheme; only the caller's transport differs.
#define COMMPROF_TRANSPORT_SCHEMES(X) \
  X(None,                             \
    0,                                \
    "hierarchical",                   \
    0,                                \
    Hierarchical,                     \
    "fp32 averages: shared memory within hosts, gloo between hosts")

enum class SchemeCode : uint8_t {
#define X(scheme, code, name, feedback, exchange, meaning) k##scheme = code,
  COMMPROF_SCHEMES(X)
#undef X
};

// X(scheme with the option, name, minimum, maximum, default, whole
// numbers only, meaning). Options of None apply to all compressing schemes.
#define COMMPROF_SCHEME_OPTIONS(X)                                            \
  X(TopK, "ratio", 1e-9, 1, 0.01, false, "fraction of the values to send")    \
  X(PowerSgd, "rank", 1, 16, 4, true, "number of columns of each factor")     \
  X(None,                                                                     \
    "feedback",                                                               \
    0,                                                                        \
    1,                                                                        \
    0,                                                                        \
    true,                                                                     \
    "1: values that were not sent are added to the next step's gradients")    \
  X(None,                                                                     \
    "start_step",                                                             \
    0,                                                                        \
    1e9,                                                                      \
    0,                                                                        \
    true,                                                                     \
    "first step with compression; earlier steps send uncompressed gradients") \
  X(None, "checksum", 0, 1, 0, true, "1: a CRC-32 with each message")         \
  X(None,                                                                     \
    "hierarchical",                                                           \
    0,                                                                        \
    1,                                                                        \
    0,                                                                        \
    true,                                                                     \
    "1: fp32 sums within each host, compression between hosts")

} // namespace commprof::compress
