// What a program (engine/grammar/automaton.h) has to be, so that a response under it comes to no dead end.
#pragma once

#include "engine/grammar/automaton.h"

namespace turbomind {

// Removes ways that no text gets to the end of. False: there is no other.
bool remove_dead_ends(Automaton::Program& program);

// Whether a rule can come to itself before anything is read: to follow that does not end.
bool is_left_recursive(const Automaton::Program& program);

}  // namespace turbomind
