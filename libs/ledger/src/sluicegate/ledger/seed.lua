-- Gives budget meters that have no base the sum that was spent before. The first seed wins.
-- KEYS: born, then the meters. ARGV: two per meter: spent, expire_at. Answer: 1 per meter that took its seed, else 0.

local t = redis.call('TIME')
redis.call('SET', KEYS[1], string.format('%.0f', t[1] * 1000 + math.floor(t[2] / 1000)), 'NX')

local answer = {}
for i = 2, #KEYS do
  local at = 2 * i - 3
  answer[i - 1] = redis.call('HSETNX', KEYS[i], 'b', ARGV[at])
  if answer[i - 1] == 1 then redis.call('PEXPIREAT', KEYS[i], ARGV[at + 1]) end
end
return answer
