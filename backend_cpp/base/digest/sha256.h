// SHA-256 (FIPS 180-4), which names content, and a fast checksum that detects damage.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace turbomind {

using Sha256 = std::array<uint8_t, 32>;

Sha256 sha256(std::string_view bytes);
// In lower case, two characters a byte.
std::string hex(const Sha256& digest);
inline std::string_view as_bytes(const Sha256& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

// A sum of 64 bits that changes with every change of up to eight consecutive bytes. It names nothing: whoever wants to
// can find other bytes with the same sum.
uint64_t checksum(std::span<const std::byte> bytes, uint64_t seed = 0);

}  // namespace turbomind
