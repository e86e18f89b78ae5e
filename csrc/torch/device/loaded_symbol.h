// Finds functions of libraries that torch or the device's driver loaded.
#pragma once

#include <initializer_list>
#include <string>

namespace commprof {

// Returns a function of this name, from the global scope or from a loaded
// library whose file name contains one of `files`; null if there is none. May
// throw std::bad_alloc.
void* loadedSymbol(
    const std::string& name,
    std::initializer_list<const char*> files);

} // namespace commprof
