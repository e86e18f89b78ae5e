// Compression across several hosts. Gradients are summed within each host
// through shared memory. The sums are compressed and exchanged between hosts.
// The results are then shared within each host.
//
// Let K be the number of ranks of the smallest host. The first K ranks of each
// host exchange different parameters of a bucket. Rank k of a host exchanges
// with rank k of the other hosts. Parameters are not split, because residuals
// and factors belong to whole parameters.
//
// After DDP rebuilds its buckets or a state is loaded, a rank may hold the
// residual of a parameter that another rank exchanges. The holder adds the
// residual to its own gradient.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "tune/compress/bucket.h"
#include "tune/compress/compressor.h"
#include "tune/shm/slices.h"
#include "tune/shm/team.h"

namespace commprof::compress {

// Splits the bucket into one range per owner. An owner is a rank of this host
// that exchanges a range. Ranges consist of whole slots and are as equal in
// size as the slots allow; some may be empty.
std::vector<shm::Slice> wholeSlots(std::span<const Slot> slots, int owners);

// Not thread-safe.
class HostStage {
 public:
  // `world`: number of ranks on all `hosts`.
  HostStage(std::shared_ptr<shm::Team> team, int owners, int hosts, int world);

  // Replaces the bucket's gradients by their mean over all ranks; blocks.
  // `transport` connects the ranks of this index on all hosts; null if this
  // rank is not an owner. An exception ends the stage for all ranks of this
  // host.
  void run(
      Compressor& compressor,
      const Bucket& bucket,
      Transport* transport,
      BucketReport& report);

  // Ends the stage for all ranks of this host.
  void abandon(const std::string& why) noexcept;

 private:
  // Returns the part of the host's sum that this rank exchanges; the part may
  // be empty. It is scaled so that the mean over hosts is the mean over ranks.
  Bucket addUp(
      Compressor& compressor,
      const Bucket& bucket,
      BucketReport& report);
  void handOver(Compressor& compressor, const Bucket& bucket, const Slot& slot);
  void share(const Bucket& bucket, BucketReport& report);
  // Restores the residuals if the bucket became NaN.
  void takeBack(Compressor& compressor, const Bucket& bucket);

  const std::shared_ptr<shm::Team> team_;
  const int owners_;
  const float scale_;
  std::vector<shm::Slice> slices_;
  std::vector<Slot> slots_;
  // Residuals of this bucket that were added to the gradient.
  std::vector<std::pair<Slot, std::vector<float>>> handed_over_;
};

} // namespace commprof::compress
