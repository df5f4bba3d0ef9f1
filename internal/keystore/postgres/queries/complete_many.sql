-- SPDX-License-Identifier: Apache-2.0
SELECT {{schema}}.{{complete_many}}($1, $2, $3, $4, $5, $6, $7)
