-- SPDX-License-Identifier: Apache-2.0
SELECT {{schema}}.{{mark_unknown}}($1, $2, $3, $4)
