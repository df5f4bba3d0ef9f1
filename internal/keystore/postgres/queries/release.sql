-- SPDX-License-Identifier: Apache-2.0
SELECT {{schema}}.{{release}}($1, $2, $3, $4)
