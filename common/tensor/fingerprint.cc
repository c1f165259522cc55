#include "common/tensor/fingerprint.h"

#include <xxhash.h>

#include <bit>

#include "common/base/check.h"

namespace luwu {

static_assert(std::endian::native == std::endian::little, "integers are hashed as they lie");

Fingerprint::Fingerprint() : state_(XXH3_createState()) {
  LUWU_CHECK(state_ != nullptr && XXH3_64bits_reset(state_.get()) == XXH_OK,
             "a hash state must be had");
}

void Fingerprint::Add(uint64_t value) {
  LUWU_CHECK(XXH3_64bits_update(state_.get(), &value, sizeof value) == XXH_OK,
             "hashing must succeed");
}

void Fingerprint::Add(std::string_view text) {
  Add(text.size());
  LUWU_CHECK(XXH3_64bits_update(state_.get(), text.data(), text.size()) == XXH_OK,
             "hashing must succeed");
}

uint64_t Fingerprint::Value() const { return XXH3_64bits_digest(state_.get()); }

void Fingerprint::Free::operator()(XXH3_state_s* state) const { XXH3_freeState(state); }

}  // namespace luwu
