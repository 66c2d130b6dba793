#include "base/digest/sha256.h"

#include <bit>
#include <cstring>

namespace turbomind {

namespace {

constexpr std::array<uint32_t, 64> kRounds = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

void add_chunk(std::array<uint32_t, 8>& state, const uint8_t* chunk) {
  std::array<uint32_t, 64> w;
  for (size_t i = 0; i < 16; ++i) {
    const uint8_t* at = chunk + 4 * i;
    w[i] = uint32_t{at[0]} << 24 | uint32_t{at[1]} << 16 | uint32_t{at[2]} << 8 | uint32_t{at[3]};
  }
  for (size_t i = 16; i < 64; ++i) {
    const uint32_t low = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ w[i - 15] >> 3;
    const uint32_t high = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ w[i - 2] >> 10;
    w[i] = w[i - 16] + low + w[i - 7] + high;
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (size_t i = 0; i < 64; ++i) {
    const uint32_t chosen = (e & f) ^ (~e & g);
    const uint32_t one = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) + chosen + kRounds[i] + w[i];
    const uint32_t majority = (a & b) ^ (a & c) ^ (b & c);
    const uint32_t two = (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + majority;
    h = g;
    g = f;
    f = e;
    e = d + one;
    d = c;
    c = b;
    b = a;
    a = one + two;
  }
  const std::array<uint32_t, 8> added = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < 8; ++i) state[i] += added[i];
}

// Reversible in either argument, so that a change of one word is never undone.
uint64_t mixed(uint64_t state, uint64_t word) {
  return std::rotl((state ^ word) * 0x9E3779B97F4A7C15u, 29) + 0x165667B19E3779F9u;
}

}  // namespace

Sha256 sha256(std::string_view bytes) {
  std::array<uint32_t, 8> state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                   0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  size_t left = bytes.size();
  for (; left >= 64; left -= 64, data += 64) add_chunk(state, data);
  std::array<uint8_t, 128> last{};
  if (left > 0) std::memcpy(last.data(), data, left);
  last[left] = 0x80;
  const size_t end = left < 56 ? 64 : 128;
  const uint64_t bits = uint64_t{bytes.size()} * 8;
  for (size_t i = 0; i < 8; ++i) last[end - 1 - i] = static_cast<uint8_t>(bits >> 8 * i);
  for (size_t at = 0; at < end; at += 64) add_chunk(state, last.data() + at);
  Sha256 digest;
  for (size_t i = 0; i < digest.size(); ++i) digest[i] = static_cast<uint8_t>(state[i / 4] >> (24 - i % 4 * 8));
  return digest;
}

std::string hex(const Sha256& digest) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text;
  for (const uint8_t byte : digest) {
    text += digits[byte >> 4];
    text += digits[byte & 15];
  }
  return text;
}

uint64_t checksum(std::span<const std::byte> bytes, uint64_t seed) {
  constexpr size_t lanes = 8;
  std::array<uint64_t, lanes> states;
  for (size_t i = 0; i < lanes; ++i) states[i] = mixed(seed, i + 1);
  const std::byte* data = bytes.data();
  size_t left = bytes.size();
  for (; left >= lanes * 8; left -= lanes * 8, data += lanes * 8) {
    std::array<uint64_t, lanes> words;
    std::memcpy(words.data(), data, sizeof(words));
    for (size_t i = 0; i < lanes; ++i) states[i] = mixed(states[i], words[i]);
  }
  std::array<uint64_t, lanes> words{};
  if (left > 0) std::memcpy(words.data(), data, left);
  uint64_t sum = bytes.size();
  for (size_t i = 0; i < lanes; ++i) sum = mixed(sum, mixed(states[i], words[i]));
  return sum ^ sum >> 31;
}

}  // namespace turbomind
