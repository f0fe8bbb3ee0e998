# One CMake target a folder of src/, so that the build shows which room may look into which:
#   core <- {reference, cpu, cuda} <- dispatch <- layers <- models <- lab <- {tools, python, web}

# Compiler results are kept by ccache, with paths relative to the source folder, so that a second clone finds them too.
find_program(ROOTDK_CCACHE ccache)
if(ROOTDK_CCACHE AND PROJECT_IS_TOP_LEVEL AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(rootdk_launcher ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${ROOTDK_CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${rootdk_launcher})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${rootdk_launcher})
endif()

set(rootdk_warnings -Wall -Wextra)

# rootdk_room(core SOURCES a.cpp b.cpp LOOKS_INTO other rooms...)
function(rootdk_room name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LOOKS_INTO" ${ARGN})
  add_library(rootdk_${name} OBJECT ${ARG_SOURCES})
  target_include_directories(rootdk_${name} PUBLIC ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
  target_compile_options(rootdk_${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${rootdk_warnings}>)
  foreach(room IN LISTS ARG_LOOKS_INTO)
    target_include_directories(rootdk_${name} PRIVATE
      $<TARGET_PROPERTY:rootdk_${room},INTERFACE_INCLUDE_DIRECTORIES>)
  endforeach()
endfunction()

# Tells where the source tree lies to those sources that ask; the others compile to the same object in every clone.
function(rootdk_name_paths)
  foreach(source IN LISTS ARGN)
    file(STRINGS ${source} asks REGEX "ROOTDK_(SOURCE_DIR|TEST_DATA)" LIMIT_COUNT 1)
    if(asks)
      set_property(SOURCE ${source} APPEND PROPERTY COMPILE_DEFINITIONS
        ROOTDK_SOURCE_DIR="${PROJECT_SOURCE_DIR}" ROOTDK_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data")
    endif()
  endforeach()
endfunction()

# Tests that start threads: what the thread sanitizer looks at. `cmake --build BUILD --target thread_tests` builds them.
if(NOT TARGET thread_tests)
  add_custom_target(thread_tests)
endif()

# rootdk_test(core_tensor_test SOURCES tensor_test.cpp [LIBRARIES ...] [LABELS ...] [TIMEOUT seconds])
# Every test program is one CTest test; GoogleTest prints the cases.
function(rootdk_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;LIBRARIES;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  rootdk_name_paths(${ARG_SOURCES})
  target_compile_options(${name} PRIVATE ${rootdk_warnings})
  target_link_libraries(${name} PRIVATE rootdk_internal ${ARG_LIBRARIES} GTest::gtest GTest::gmock GTest::gtest_main)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  add_test(NAME ${name} COMMAND ${name})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 1500)
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT})
  if(threads IN_LIST ARG_LABELS)
    add_dependencies(thread_tests ${name})
  endif()
endfunction()
