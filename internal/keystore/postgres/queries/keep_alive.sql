-- SPDX-License-Identifier: Apache-2.0
SELECT {{schema}}.keep_alive($1, $2)
