// The mean of fp32 values by one all-reduce, as DDP takes it without a hook:
// divided first, then summed.
#pragma once

#include "compress/bucket.h"
#include "compress/exchange/messages/channel.h"

namespace commprof::compress {

void plainMean(const Bucket& bucket, Channel& channel);

} // namespace commprof::compress
